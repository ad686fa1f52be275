"""Every model on sampled mini-batches, whoever draws them, computes what one process computes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.layout import Layout
from gnnhpc.kernels import sample
from tests.tools.dgl import needs_dgl
from tests.tools.forked import started
from tests.tools.pyg_sampler import needs_pyg_sampler

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++"),
]
MODELS = {
    "gcn": ["model.layers=3"],
    "sage": ["model.layers=3"],
    "sage max": ["model.layers=3", "model.aggregator=max"],
    "sage pool": ["model.layers=3", "model.aggregator=pool"],
    "gin": ["model.layers=3"],
    "graphconv": ["model.layers=3"],
    "gat": ["model.layers=3"],
    "gatv2": ["model.layers=3"],
    "resgcn": ["model.layers=3"],
    "gcnii": ["model.layers=3"],
}
SAMPLERS = {
    "ours": "fanouts: [4, 3, 2]",
    "ours once": "fanouts: [3, 3, 3], semantics: once",
    "pyg": "fanouts: [4, 3, 2], sampler: pyg",
    "dgl": "fanouts: [4, 3, 2], sampler: dgl",
}
LACKING = {("sage max", "dgl"), ("graphconv", "dgl"), ("gcnii", "dgl")}


def case(place: int, model: str, sampler: str) -> tuple[str, ...]:
    """All pairs of models and samplers; the rest in turns that meet each of both."""
    form = ("fused", "pyg", "dgl")[(place + place // 4) % 3]
    return (
        model,
        sampler,
        "fused" if (model, form) in LACKING else form,
        ("seq", "dp2", "dp3")[place % 3],
        ("1", "3")[place // 3 % 2],
        ("0", "1", "2")[place // 2 % 3],
        ("float32", "float64")[place // 5 % 2],
        ("never", "always")[place // 7 % 2],
        ("false", "true")[place % 5 == 4],
    )


CASES = [
    case(place, model, sampler)
    for place, (model, sampler) in enumerate((m, s) for m in MODELS for s in SAMPLERS)
]


@pytest.mark.parametrize(
    (
        *("model", "sampler", "form", "layout", "microbatches", "workers", "dtype"),
        *("checkpoint", "replace"),
    ),
    CASES,
)
def test_sampled_mini_batches_are_the_twins(
    model: str,
    sampler: str,
    form: str,
    layout: str,
    microbatches: str,
    workers: str,
    dtype: str,
    checkpoint: str,
    replace: str,
    tmp_path: Path,
) -> None:
    """Of 35 nodes to train on; an epoch's last mini-batch has fewer in replicas."""
    if "dgl" in (form, sampler):
        needs_dgl()
    if sampler == "pyg":
        needs_pyg_sampler()
    drawn = f"sampling={{{SAMPLERS[sampler]}, workers: {workers}, replace: {replace}}}"
    settings = [
        *("data.nodes=150", "data.edges=700", "data.features=12", "batch_size=7", drawn),
        *(f"model.implementation={form}", f"dtype={dtype}", f"checkpoint={checkpoint}"),
        *MODELS[model],
    ]
    command = ["verify", "--model", model.split(maxsplit=1)[0], "--layout", layout]
    command += ["--data", "synthetic-citation", "--microbatches", microbatches]
    command += [word for setting in settings for word in ("--set", setting)]
    with started(command, Layout.parse(layout).replicas, tmp_path) as ranks:
        statuses = ranks.wait()
        said = ranks.out(0) + ranks.err(0)
    assert set(statuses) == {0}, said
    assert "PASSED" in said
