"""A graph goes to the devices where all ranks have room for it."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.batches.sampled import placement
from gnnhpc.batches.sampled.placement import KEPT_FREE, choose, edges_bytes
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from tests.tools.graphs import make_graph


@pytest.mark.parametrize(
    ("free", "sparse", "ours", "found"),
    [
        ("both", False, True, ("device", "device")),
        ("both, less a byte", False, True, ("device", "host")),
        ("features", False, True, ("device", "host")),
        ("features, less a byte", False, True, ("pinned", "host")),
        ("both", True, True, ("host", "host")),
        ("both", False, False, ("device", "host")),
        ("features, less a byte", False, False, ("host", "host")),
    ],
)
def test_a_gpu_has_what_it_has_room_for(
    free: str,
    sparse: bool,
    ours: bool,
    found: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pinned are features that our threads gather; the libraries' samplers read their own graph."""
    graph = make_graph(20, 30, sparse=sparse, seed=1)
    size = 20 * 12 * 4 + ("both" in free) * edges_bytes(graph.in_edges)
    less = "less" in free
    monkeypatch.setattr(placement, "free_bytes", lambda device: KEPT_FREE * size - less)
    mesh = Mesh(Layout(), 0, torch.device("cuda", 0), gpu="GPU-a")
    chosen = choose(mesh, graph.features, graph.in_edges if ours else None)
    assert (chosen.features, chosen.graph) == found


def test_ranks_that_share_a_device_share_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph(20, 30, sparse=False, seed=1)
    mesh = Mesh(Layout(), 0, torch.device("cuda", 0), gpu="GPU-a")
    monkeypatch.setattr(Mesh, "gather_objects", lambda self, mine: [mine, mine])
    for rooms, found in ((2, "device"), (1, "pinned")):
        free = KEPT_FREE * rooms * graph.features.nbytes
        monkeypatch.setattr(placement, "free_bytes", lambda device, free=free: free)
        assert choose(mesh, graph.features, graph.in_edges).features == found
