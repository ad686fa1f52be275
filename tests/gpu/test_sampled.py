"""Sampled training on a GPU: the same from wherever features and edges come."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnhpc.batches.prefetch import Ring
from gnnhpc.batches.sampled.placement import KEPT_FREE
from gnnhpc.graphs.device_copies import moved
from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.kernels.sample_neighbors import FRESH
from tests.gpu.test_cells import SAME, SHARED, assert_as_on_a_cpu, ran, show, visible
from tests.tools.backends import needs_pyg_sampler
from tests.tools.cells import sampled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++"),
]
DATA = {"name": "reddit-shaped", "nodes": 150, "edges": 1_500, "features": 32, "classes": 5}
SAGE: dict[str, Any] = {"name": "sage", "layers": 2}
GAT: dict[str, Any] = {"name": "gat"}
OF_FEATURES = KEPT_FREE * DATA["nodes"] * DATA["features"]  # type: ignore[operator]
"""What must be free for one rank's features, in values."""


def with_free(size: int | None, gpus: list[str] | None) -> None:
    """A device that has so many bytes free; two ranks share the first of `gpus`."""
    from gnnhpc.batches.sampled import placement

    if gpus is not None:
        show(gpus, "first")
    if size is not None:
        placement.free_bytes = lambda device: size


@pytest.mark.distributed
@pytest.mark.parametrize("layout", ["seq", "dp2"])
@pytest.mark.parametrize("storage", ["float32", "float16"])
@pytest.mark.parametrize("model", [SAGE, GAT], ids=lambda model: model["name"])
@pytest.mark.parametrize(
    ("room", "features", "graph"),
    [("all", "device", "device"), ("features", "device", "host"), ("none", "pinned", "host")],
)
def test_cells_learn_what_a_cpu_does(
    room: str,
    features: str,
    graph: str,
    model: dict[str, Any],
    storage: str,
    layout: str,
    tmp_path: Path,
) -> None:
    ranks = 2 if layout == "dp2" else 1
    size = {"float32": 4, "float16": 2}[storage] * OF_FEATURES * ranks
    free = {"all": None, "features": size, "none": 0}[room]
    settings = {"data": DATA | {"storage": storage}, "model": model, "train_steps": 9, **SAME}
    cell = ran(
        tmp_path,
        sampled(**settings, device="gpu", layout=layout, batch_size=24 // ranks),
        env=SHARED,
        plant=functools.partial(with_free, free, visible() if ranks == 2 else None),
    )
    assert_as_on_a_cpu(tmp_path, cell)
    reported = cell.result.graph
    assert (reported["features_on"], reported["graph_on"]) == (features, graph)
    by = "triton" if graph == "device" else "c++"
    assert (reported["sampled_on"], reported["sampled_by"]) == (graph, by)
    for rank in range(ranks):
        assert all(step["sample_s"] > 0 for step in cell.steps(rank, "train"))


def test_what_pyg_samples_on_the_host_is_learned_as_on_a_cpu(tmp_path: Path) -> None:
    needs_pyg_sampler()
    settings = {"data": DATA, "model": SAGE, "train_steps": 9, **SAME}
    sampling = {"fanouts": [4, 3], "sampler": "pyg"}
    cell = ran(tmp_path, sampled(**settings, device="gpu", sampling=sampling), env=SHARED)
    assert_as_on_a_cpu(tmp_path, cell)
    reported = cell.result.graph
    assert (reported["features_on"], reported["sampled_on"]) == ("device", "host")


def test_a_pinned_slot_is_lent_again_only_after_the_device_has_read_it() -> None:
    ring = Ring(1, pinned=True)
    ring.lend().empty(1000, torch.int32)
    source = ring.lend().empty(1000, torch.int32).fill_(7)
    torch.cuda.synchronize()
    # Some tenths of a second of the device.
    torch.cuda._sleep(500_000_000)  # type: ignore[no-untyped-call]
    there = moved(source, "cuda")
    del source
    assert ring.lend() is FRESH
    torch.cuda.synchronize()
    other = torch.zeros(1).pin_memory()
    assert moved(other, "cuda").device.type == "cuda"
    again = ring.lend()
    assert again is not FRESH
    again.empty(1000, torch.int32).fill_(9)
    assert there.eq(7).all()
