"""Every graph layer, in each form and under each engine, computes what one process computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.layout import Layout, processes_of
from tests.tools.dgl import needs_dgl
from tests.tools.forked import started

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

LAYERS = {
    "gcn": ["model.layers=3"],
    "sage": ["model.layers=3"],
    "sage max": ["model.aggregator=max"],
    "sage pool": ["model.aggregator=pool"],
    "gin": ["model.layers=3"],
    "graphconv": ["model.layers=3"],
    "gat": ["model.layers=3"],
    "gatv2": ["model.layers=3"],
    "resgcn": ["model.layers=4"],
    "gcnii": ["model.layers=4"],
}
LACKING = {("sage max", "dgl"), ("graphconv", "dgl")}
CASES = [
    (layer, form, engine, layout)
    for layer in LAYERS
    for form in ("fused", "pyg", "dgl")
    if (layer, form) not in LACKING
    for engine, layout in (
        ("native", "seq"),
        ("native", "pp2"),
        ("native", "dp2-pp2"),
        ("pipelining", "pp2"),
        ("pipelining", "dp2-pp2"),
        ("torchgpipe", "pp2"),
        ("torchgpipe", "dp2-pp2"),
    )
]


@pytest.mark.parametrize(("layer", "form", "engine", "layout"), CASES)
def test_layer_is_its_sequential_twin(
    layer: str, form: str, engine: str, layout: str, tmp_path: Path
) -> None:
    """Of 61 nodes, which do not make equal chunks; DGL's GCNII has no chunks with a halo."""
    if form == "dgl":
        needs_dgl()
    name = layer.split(maxsplit=1)[0]
    chunks = "clustered" if (name, form) == ("gcnii", "dgl") else "halo"
    settings = [
        *(f"model.implementation={form}", f"engine={engine}", f"chunks={chunks}"),
        *("data.nodes=61", "data.edges=250", "data.features=12", *LAYERS[layer]),
    ]
    command = ["verify", "--model", name, "--layout", layout, "--microbatches", "3"]
    command += [word for setting in settings for word in ("--set", setting)]
    size = processes_of(Layout.parse(layout), engine).world_size
    with started(command, size, tmp_path) as ranks:
        statuses = ranks.wait()
        said = ranks.out(0) + ranks.err(0)
    assert set(statuses) == {0}, said
    assert "PASSED" in said
