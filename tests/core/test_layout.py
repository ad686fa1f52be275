"""Layouts: names that read back, and ranks that map both ways without a gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout

layouts = st.builds(Layout, st.integers(1, 9), st.integers(1, 9))


@pytest.mark.parametrize(
    ("name", "replicas", "stages", "short"),
    [
        ("seq", 1, 1, "seq"),
        ("pp4", 1, 4, "pp4"),
        ("dp2", 2, 1, "dp2"),
        ("dp12-pp10", 12, 10, "dp12-pp10"),
        ("dp1-pp1", 1, 1, "seq"),
        ("dp1-pp4", 1, 4, "pp4"),
    ],
)
def test_names_say_replicas_and_stages(name: str, replicas: int, stages: int, short: str) -> None:
    layout = Layout.parse(name)
    assert (layout.replicas, layout.stages, str(layout)) == (replicas, stages, short)
    assert layout.world_size == replicas * stages


@pytest.mark.parametrize(
    "name",
    [
        *("", "-", "pp", "dp2-", "-pp2", "pp0", "pp3x", "pp2-dp2"),
        *("dp2pp2", "PP2", " pp2", "pp２"),
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
def test_ranks_map_both_ways_and_to_pipelines_and_replicas(layout: Layout) -> None:
    everyone = range(layout.world_size)
    places = [(layout.replica_of(r), layout.stage_of(r)) for r in everyone]
    assert [layout.rank_of(*place) for place in places] == list(everyone)
    pipelines = [layout.pipeline_ranks(replica) for replica in range(layout.replicas)]
    groups = [layout.replica_ranks(stage) for stage in range(layout.stages)]
    assert [rank for pipeline in pipelines for rank in pipeline] == list(everyone)
    assert [list(column) for column in zip(*pipelines, strict=True)] == groups
