"""Layouts: names that read back, and ranks that map both ways without a gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout, processes_of

layouts = st.builds(Layout, st.integers(1, 9), st.integers(1, 9))


@pytest.mark.parametrize(
    ("name", "replicas", "stages"),
    [
        ("seq", 1, 1),
        ("pp4", 1, 4),
        ("dp2", 2, 1),
        ("dp12-pp10", 12, 10),
    ],
)
def test_names_say_replicas_and_stages(name: str, replicas: int, stages: int) -> None:
    layout = Layout.parse(name)
    assert (layout.replicas, layout.stages) == (replicas, stages)
    assert layout.world_size == replicas * stages
    assert str(layout) == name


@pytest.mark.parametrize(
    ("long", "short"), [("dp1", "seq"), ("pp1", "seq"), ("dp1-pp1", "seq"), ("dp1-pp4", "pp4")]
)
def test_a_layout_has_one_name(long: str, short: str) -> None:
    assert str(Layout.parse(long)) == short


@pytest.mark.parametrize(
    "name",
    [
        *("", "-", "pp", "dp2-", "-pp2", "pp0", "pp02", "pp3x", "pp2-dp2"),
        *("dp2pp2", "dp2--pp2", "PP2", "seq2", " pp2", "pp2\n", "pp２"),
    ],
)
def test_other_names_are_refused_with_the_choices(name: str) -> None:
    with pytest.raises(InputError) as refused:
        Layout.parse(name)
    assert str(refused.value) == " ".join(
        f"layout: found {name!r}; allowed: seq, pp<S>, dp<R> or dp<R>-pp<S>, "
        "such as pp2, pp4, dp2-pp2".split()
    )


@given(layouts)
def test_ranks_map_both_ways(layout: Layout) -> None:
    places = [(layout.replica_of(r), layout.stage_of(r)) for r in range(layout.world_size)]
    assert [layout.rank_of(*place) for place in places] == list(range(layout.world_size))
    assert len(set(places)) == layout.world_size


@given(layouts)
def test_pipelines_and_replica_groups_deal_out_all_ranks(layout: Layout) -> None:
    pipelines = [layout.pipeline_ranks(replica) for replica in range(layout.replicas)]
    groups = [layout.replica_ranks(stage) for stage in range(layout.stages)]
    everyone = list(range(layout.world_size))
    assert [rank for pipeline in pipelines for rank in pipeline] == everyone
    assert sorted(rank for group in groups for rank in group) == everyone
    assert [list(column) for column in zip(*pipelines, strict=True)] == groups


@given(layouts)
def test_ranks_and_places_outside_are_refused(layout: Layout) -> None:
    for rank in (-1, layout.world_size):
        for place in (layout.replica_of, layout.stage_of):
            with pytest.raises(ValueError, match=f"rank {rank} is outside"):
                place(rank)
    for place_of in ((-1, 0), (0, -1), (layout.replicas, 0), (0, layout.stages)):
        with pytest.raises(ValueError, match="no rank at"):
            layout.rank_of(*place_of)


def test_a_process_of_torchgpipe_has_all_stages_of_a_replica() -> None:
    assert processes_of(Layout(3, 2), "torchgpipe") == Layout(3, 1)
    assert processes_of(Layout(3, 2), "native") == Layout(3, 2)
