"""Which process holds which places, with one stage a process and with several."""

from __future__ import annotations

import pytest

from gnnhpc.core.layout import Layout
from gnnhpc.core.rank_map import RankMap


@pytest.mark.parametrize(
    ("stages_per_process", "processes"),
    [(1, [0, 1, 2, 3, 4, 5, 6, 7]), (2, [0, 0, 1, 1, 2, 2, 3, 3]), (4, [0, 0, 0, 0, 1, 1, 1, 1])],
)
def test_the_process_of_each_place(stages_per_process: int, processes: list[int]) -> None:
    layout = Layout(replicas=2, stages=4)
    ranks = RankMap(layout, stages_per_process)
    places = [(replica, stage) for replica in range(2) for stage in range(4)]
    assert [ranks.process_of(*place) for place in places] == processes
    assert ranks.processes == max(processes) + 1
    for replica, stage in places:
        process = ranks.process_of(replica, stage)
        assert layout.rank_of(replica, stage) in ranks.places_of(process)
        assert stage in ranks.stages_of(process)
        assert ranks.replica_of(process) == replica
        assert process in ranks.pipeline(replica)
        assert process in ranks.peers(stage)


@pytest.mark.parametrize("stages_per_process", [0, 3, 8])
def test_stages_that_do_not_divide_among_processes_are_refused(stages_per_process: int) -> None:
    with pytest.raises(ValueError, match="do not divide dp2-pp4"):
        RankMap(Layout(2, 4), stages_per_process)
