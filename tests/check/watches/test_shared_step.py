"""An all-reduce begins with the last replica of its stage, by what each replica says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gnnhpc.check.audits.times import times as audited
from gnnhpc.check.watches.shared_step import SharedStep, shared_step
from gnnhpc.engines.timing import Span, StepTimes
from tests.check.test_audit import LAYOUT, good
from tests.tools.step_records import step_record


def recorded(spans: list[Span], arrival_s: float | None, last_s: float) -> SharedStep | None:
    """Of a step whose all-reduce is told from waiting as at `last_s`."""
    times = StepTimes(2.0, 0.0, spans, {}, 0, None, arrival_s=arrival_s)
    times.wait_for_replicas(last_s)
    record = step_record(2.0, step=3, allreduce_s=times.total("allreduce"))
    return shared_step(record, times, None)


BESIDE = Span("allreduce", None, 1.0, 1.1)
REDUCED = Span("allreduce", None, 1.1, 1.5)


@pytest.mark.parametrize("last_s", [0.5, 1.1, 1.3, 1.5, 1.9])
def test_what_was_cut_off_is_known_again(last_s: float) -> None:
    found = recorded([Span("backward", 0, 0.0, 1.0), BESIDE, REDUCED], 1.1, last_s)
    assert found is not None
    assert (found.arrival_s, found.until_s) == (1.1, 1.5)
    assert found.reduced_s(last_s) == pytest.approx(found.allreduce_s, abs=1e-12)
    # From another arrival it is another.
    for other_s in {1.1, 1.2, 1.4} - {last_s, max(last_s, 1.1)}:
        assert abs(found.reduced_s(other_s) - found.allreduce_s) > 0.05


def test_a_step_that_shares_nothing_is_none() -> None:
    assert recorded([Span("backward", 0, 0.0, 1.0)], None, 0.0) is None


@pytest.mark.parametrize(
    ("last_s", "words"),
    [
        (1.2, ""),
        (1.4, "0.200000 s, 0.400000 s by what the replicas say"),
        (1.15, "0.450000 s, 0.400000 s by"),
    ],
)
def test_an_all_reduce_begins_with_the_last_replica_of_its_stage(last_s: float, words: str) -> None:
    """Ranks 0 and 2 are a stage's replicas, ranks 1 and 3 come later and are another's."""
    spans = [BESIDE, REDUCED]
    late = [Span("allreduce", None, 1.4, 1.7)]
    shared = [
        recorded([*spans], 1.1, last_s),
        recorded([*late], 1.4, 1.4),
        recorded([BESIDE, Span("allreduce", None, 1.2, 1.5)], 1.2, 1.2),
        recorded([*late], 1.4, 1.4),
    ]
    ranks = [
        replace(good(rank), shared=[] if step is None else [step])
        for rank, step in enumerate(shared)
    ]
    check = audited(ranks, LAYOUT)
    assert check.verdict == ("invalid" if words else "ok")
    assert words in check.detail
    if words:
        assert check.detail.startswith(
            "rank 0: allreduce_s that does not begin with its stage's last replica in 1 steps, "
            "first train step 3"
        )
