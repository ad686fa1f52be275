"""What making a mini-batch took lies within another clock's readings, whichever thread made it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gnnhpc.batches.batch import Loading
from gnnhpc.batches.stopwatch import Stopwatch, Timed
from gnnhpc.check.watches.faults import Faults
from gnnhpc.check.watches.part_faults import PartFaults
from tests.tools.step_records import step_record


def told(loading: Loading | None, edges: int | None = 3) -> list[str]:
    record = step_record(
        1.0,
        step=2,
        sample_s=None if loading is None else loading.sample_s,
        gather_s=None if loading is None else loading.gather_s,
        sampled_edges=None if loading is None else edges,
    )
    faults = PartFaults(Faults())
    faults.compare_loading(record, loading)
    return faults.faults.told()


@pytest.mark.usefixtures("one_busy_processor")
def test_a_busy_processor_accuses_nobody() -> None:
    for _ in range(50):
        stopwatch = Stopwatch()
        time.sleep(1e-3)
        sampled = stopwatch.read()
        assert 1e-3 < sampled.least_s < sampled.most_s
        assert told(Loading.of(sampled, Stopwatch().read(), 3)) == []


def test_what_was_not_timed_has_no_seconds() -> None:
    assert told(None) == []
    assert told(Loading.of(None, None, 3)) == []
    assert told(Loading(1.0, None, 3)) == [
        "sample_s that a second clock did not see in 1 steps, first train step 2: 1.0 s, one of "
        "them not timed"
    ]


@pytest.mark.parametrize("name", ["sample_s", "gather_s"])
@pytest.mark.parametrize("share", [1e-3, 0.99, 1.01, float("nan")])
def test_other_seconds_are_told(name: str, share: float) -> None:
    right = Loading.of(Timed(2e-3, 1.999e-3, 2.001e-3), Timed(1e-3, 0.999e-3, 1.001e-3), 3)
    assert told(right) == []
    (fault,) = told(replace(right, **{name: getattr(right, name) * share}))
    assert fault.startswith(f"{name} that a second clock did not see in 1 steps, first train step")


@pytest.mark.parametrize("edges", [None, 0, 4])
def test_other_edges_than_were_drawn_are_told(edges: int | None) -> None:
    (fault,) = told(Loading.of(None, None, 3), edges)
    assert fault.endswith(f"first train step 2: {edges}, 3 were drawn")
