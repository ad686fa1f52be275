"""A graph goes to the devices where all ranks have room for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.batches.sampled import placement
from gnnhpc.batches.sampled.placement import (
    KEPT_FREE,
    DeviceNeed,
    Placement,
    choose,
    edges_bytes,
    place,
)
from gnnhpc.core.layout import Layout
from gnnhpc.distributed.mesh import Mesh
from tests.tools.graphs import make_graph

SIZES = st.integers(0, 1000)
ROOMS = st.lists(
    st.builds(DeviceNeed, st.sampled_from(["GPU-a", "GPU-b", "GPU-c"]), SIZES, SIZES, SIZES),
    min_size=1,
    max_size=5,
)


def used(rooms: list[DeviceNeed], where: Placement) -> dict[str | None, int]:
    """What lies on each device."""
    found: dict[str | None, int] = {}
    for room in rooms:
        size = room.features if where.features == "device" else 0
        size += room.graph if where.graph == "device" else 0
        found[room.device] = found.get(room.device, 0) + size
    return found


@given(ROOMS)
def test_no_device_is_given_more_than_its_part_of_what_is_free(rooms: list[DeviceNeed]) -> None:
    found = place(rooms, features=True, graph=True)
    for room in rooms:
        assert used(rooms, found)[room.device] * KEPT_FREE <= room.free


@given(ROOMS)
def test_what_fits_goes_to_the_device(rooms: list[DeviceNeed]) -> None:
    found = place(rooms, features=True, graph=True)
    for more in (Placement("device"), Placement("device", "device")):
        fits = all(used(rooms, more)[r.device] * KEPT_FREE <= r.free for r in rooms)
        names = ("features",) if more.graph == "host" else ("features", "graph")
        assert all(getattr(found, name) == "device" for name in names) == fits


@given(ROOMS, st.integers(0, 1000))
def test_more_room_takes_nothing_off_a_device(rooms: list[DeviceNeed], more: int) -> None:
    larger = [replace(room, free=room.free + more) for room in rooms]
    before = place(rooms, features=True, graph=True)
    after = place(larger, features=True, graph=True)
    assert before.features in ("host", after.features)
    assert before.graph in ("host", after.graph)


@given(ROOMS)
def test_what_may_not_be_there_is_not(rooms: list[DeviceNeed]) -> None:
    assert place(rooms, features=False, graph=True) == Placement()
    assert place(rooms, features=True, graph=False).graph == "host"


def test_ranks_that_share_a_device_share_its_room() -> None:
    one = DeviceNeed("GPU-a", 100, 30, 10)
    assert place([one], features=True, graph=True) == Placement("device", "device")
    assert place([one, replace(one, device="GPU-b")], features=True, graph=True).graph == "device"
    assert place([one, one], features=True, graph=True) == Placement()
    later = replace(one, features=0)
    assert place([one, later], features=True, graph=True) == Placement("device", "device")


def test_on_a_cpu_all_is_on_the_host() -> None:
    graph = make_graph(20, 30, sparse=False, seed=1)
    mesh = Mesh(Layout(), 0, torch.device("cpu"))
    found = choose(mesh, graph.features, graph.in_edges)
    assert found.metadata() == {"features_on": "host", "graph_on": "host"}


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
    told = choose(mesh, graph.features, graph.in_edges if ours else None)
    assert (told.features, told.graph) == found


def test_edges_are_counted_with_what_a_sampler_keeps_of_each_node() -> None:
    edges = make_graph(20, 30, seed=1).in_edges
    assert edges_bytes(edges) == 21 * 8 + len(edges.source) * 4 + 20 * 12
