"""Layouts: names that read back, and ranks that map both ways without a gap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout

layouts = st.builds(Layout, st.integers(1, 9), st.integers(1, 9))


@pytest.mark.parametrize(
    ("name", "short"), [("dp12-pp10", "dp12-pp10"), ("dp1-pp1", "seq"), ("dp1-pp4", "pp4")]
)
def test_a_name_has_one_short_form(name: str, short: str) -> None:
    assert str(Layout.parse(name)) == short


OTHERS = ("", "-", "pp", "dp2-", "-pp2", "pp0", "pp3x", "pp2-dp2", "dp2pp2", "PP2", " pp2", "pp２")


@pytest.mark.parametrize("name", OTHERS)
def test_other_names_are_refused_with_the_choices(name: str) -> None:
    with pytest.raises(InputError, match=r"allowed: seq, pp<S>, dp<R> or dp<R>-pp<S>, such as pp2"):
        Layout.parse(name)


@given(layouts)
def test_names_and_ranks_map_both_ways(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == layout
    everyone = range(layout.world_size)
    places = [(layout.replica_of(r), layout.stage_of(r)) for r in everyone]
    assert [layout.rank_of(*place) for place in places] == list(everyone)
    pipelines = [layout.pipeline_ranks(replica) for replica in range(layout.replicas)]
    groups = [layout.replica_ranks(stage) for stage in range(layout.stages)]
    assert [rank for pipeline in pipelines for rank in pipeline] == list(everyone)
    assert [list(column) for column in zip(*pipelines, strict=True)] == groups
