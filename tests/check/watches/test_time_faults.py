"""Recorded seconds of groups and of waiting for data are held against a second reading."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.batches.stopwatch import Timed
from gnnhpc.check.watches.faults import Faults
from gnnhpc.check.watches.part_faults import PartFaults, StageFacts
from gnnhpc.check.watches.second_clock import SeenStep
from gnnhpc.check.watches.time_faults import TimeFaults
from gnnhpc.check.watches.work_moments import Moment
from gnnhpc.core.schedule import Action, Kind
from gnnhpc.engines.timing import Span, SpanName, StepTimes
from gnnhpc.records.schema import Phase, StepRecord
from tests.tools.step_records import step_record

LAYERS = {"block0.ffn": [0.1, 0.2], "block0.grapher": [0.3, 0.4], "readout": [0.05, 0.05]}
GROUPS = {"block0.ffn": "block0", "block0.grapher": "block0", "readout": "readout"}
RIGHT = {"block0": [0.4, 0.6], "readout": [0.05, 0.05]}


def told(groups: dict[str, Any], data_s: list[float], taken: list[Timed | None]) -> list[str]:
    faults = TimeFaults()
    faults.parts.stage = StageFacts(GROUPS)
    for step, (data, timed) in enumerate(zip(data_s, taken, strict=True)):
        spans = [Span("forward", 0, 0.0, 0.5), Span("backward", 0, 0.5, 1.2)]
        times = StepTimes(1.2, 0.0, spans, LAYERS, 0, None)
        record = step_record(
            1.2,
            step=step,
            start_s=2.0 * step,
            forward_s=0.5,
            backward_s=0.7,
            data_s=data,
            groups=groups,
        )
        seen = SeenStep(1.2, 1.2, 2.0 * step, 2.0 * step, taken=timed)
        faults.compare(record, times, seen)
    return faults.told()


@pytest.mark.parametrize(
    "groups",
    [
        {"block0": RIGHT["readout"], "readout": RIGHT["block0"]},
        {"block0": RIGHT["block0"]},
        {"block0": [0.4, 0.7], "readout": [0.05, 0.05]},
    ],
)
def test_a_group_s_seconds_are_those_of_its_layers(groups: dict[str, Any]) -> None:
    assert told(RIGHT, [0.0], [None]) == []
    (fault,) = told(groups, [0.0], [None])
    assert fault.startswith("a group's seconds that are not those of its layers in 1 steps")


@pytest.mark.parametrize(
    ("data_s", "taken", "wrong"),
    [
        (0.02, Timed(0.02, 0.0199, 0.0201), False),
        # The machine did something else between two readings.
        (0.02, Timed(0.02, 0.001, 0.08), False),
        (0.0, Timed(0.02, 0.0199, 0.0201), True),
        (0.0, Timed(1e-4, 9e-5, 1.1e-4), True),
        (0.03, Timed(0.02, 0.0199, 0.0201), True),
    ],
)
def test_waiting_for_data_is_what_taking_it_took(
    data_s: float, taken: Timed, *, wrong: bool
) -> None:
    found = [
        each
        for each in told(RIGHT, [data_s], [taken])
        if each.startswith("data_s that a second clock did not see in 1 steps")
    ]
    assert len(found) == wrong


def loose(
    began_s: float,
    delays: tuple[float | None, float | None] = (None, None),
    ended_s: float = 1.0,
    kind: Kind = "forward",
    end_delays: tuple[float | None, float | None] = (None, None),
    switches: int = 0,
) -> str | None:
    """What is said of three steps with one such span, which begins at 0 and lasts for a second, and
    whose stage begins with it at `began_s` and ends at `ended_s`; `delays` are the thread's waits
    for a processor until the one beginning and the other, `end_delays` until the stage's end and
    the span's; `switches` is how often another process had it in a step."""
    faults = TimeFaults()
    faults.parts.stage = StageFacts(GROUPS, loss_part=None)
    for step in range(3):
        span = Span(kind, 0, 0.0, 1.0, delay_before_s=delays[0], delay_after_s=end_delays[1])
        times = StepTimes(1.2, 0.0, [span], LAYERS, switches, None, waiting_cpu_s=0.0)
        record = step_record(
            1.2,
            step=step,
            start_s=2.0 * step,
            forward_s=1.0 * (kind == "forward"),
            backward_s=1.0 * (kind == "backward"),
            groups=RIGHT,
        )
        begins = {(kind, (0, 0)): Moment(began_s, delays[1])}
        ends = {(kind, (0, 0)): Moment(ended_s, end_delays[0])}
        seen = SeenStep(*(1.2, 1.2, 2.0 * step, 2.0 * step), begins=begins, ends=ends)
        faults.compare(record, times, seen)
    return faults.parts.loose()


@pytest.mark.parametrize(
    ("began_s", "delays", "told"),
    [
        (0.1, (5.0, 5.0), False),
        (0.6, (5.0, 5.0), True),
        # Between the two it could have run and had no processor.
        (0.6, (5.0, 5.5), False),
        (0.6, (5.0, 5.1), True),
        (0.6, (None, None), True),
        # Of another thread: it says nothing of this one.
        (0.6, (5.0, 1.0), True),
        (0.1, (5.0, 1.0), False),
    ],
)
def test_a_wait_for_a_processor_is_no_work_before_the_work(
    began_s: float, delays: tuple[float | None, float | None], told: bool
) -> None:
    found = loose(began_s, delays)
    assert (found is not None) is told, found
    if found is not None:
        assert found.startswith("forward spans of 3 steps hold 3.000 s, of which 1.")


@pytest.mark.parametrize(("switches", "told"), [(0, True), (100, True), (1_100, False)])
def test_caches_that_fill_again_are_no_wait(switches: int, told: bool) -> None:
    """A tenth of a millisecond each time that another process had the processor."""
    assert (loose(0.3, switches=switches) is not None) is told


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize(
    ("ended_s", "end_delays", "told"),
    [
        # A little is other hooks'.
        (0.9, (5.0, 5.0), False),
        (0.4, (5.0, 5.0), True),
        (0.4, (None, None), True),
        # Between the two it could have run and had no processor.
        (0.4, (5.0, 5.5), False),
        (0.4, (5.0, 5.1), True),
        # Of another thread: it says nothing of this one.
        (0.4, (5.0, 1.0), True),
    ],
)
def test_a_span_ends_where_its_work_does(
    kind: Kind, ended_s: float, end_delays: tuple[float | None, float | None], told: bool
) -> None:
    found = loose(0.0, ended_s=ended_s, kind=kind, end_delays=end_delays)
    assert (found is not None) is told, found
    if found is not None:
        assert found.startswith(f"{kind} spans of 3 steps hold 3.000 s, of which 1.")
        assert found.endswith(" s after its stage had computed")


def step_of(phase: Phase, step: int, *, wrong: bool) -> tuple[StepRecord, StepTimes, SeenStep]:
    """Where wrong recorded a third longer than it was, with a forward that began long before its
    stage did, and forwards computed again told half as long again."""
    longer = 1.6 if wrong else 1.2
    spans = [Span("forward", 0, 0.0, 0.5), Span("backward", 0, 0.5, 1.2)]
    times = StepTimes(longer, 0.0, spans, LAYERS, 0, None, waiting_cpu_s=0.0)
    record = step_record(
        longer,
        phase=phase,
        step=step,
        start_s=2.0 * step,
        forward_s=0.5,
        backward_s=0.7,
        wait_s=longer - 1.2,
        groups=RIGHT,
        recompute_s=(0.6 if wrong else 0.4) if phase == "train" else 0.0,
    )
    forward: Kind = "forward"
    begins = {(forward, (0, 0)): Moment(0.4 if wrong else 0.0, None)}
    recomputed, recompute_s = (places(1), 0.4) if phase == "train" else ([], 0.0)
    seen = SeenStep(
        *(1.2, longer, 2.0 * step, 2.0 * step),
        begins=begins,
        recomputed=recomputed,
        recompute_s=recompute_s,
    )
    return record, times, seen


@pytest.mark.parametrize("wrong", ["train", "test", None])
def test_the_steps_of_the_other_phase_hide_no_wrong_one(wrong: Phase | None) -> None:
    """However many these are."""
    faults = TimeFaults()
    faults.parts.stage = StageFacts(GROUPS, loss_part=None, recomputed=[(0, 0)])
    few, many = (wrong or "train"), "train" if wrong == "test" else "test"
    for step, phase in enumerate([few] * 4 + [many] * 9):
        faults.compare(*step_of(phase, step, wrong=phase == wrong))
    found = [*faults.told(), faults.parts.loose()]
    said = ["4 steps were recorded as 6.400000 s", "forward spans of 4 steps hold 2.000 s"]
    if wrong == "train":
        said.insert(1, "recompute_s holds 2.4000 s in 4 steps")
    if wrong is None:
        assert found == [None]
    else:
        assert len(found) == len(said)
        assert all(str(each).startswith(words) for each, words in zip(found, said, strict=True))


def places(count: int | None) -> list[tuple[int, int]] | None:
    """The first micro-batches of a stage of one part."""
    return None if count is None else [(0, m) for m in range(count)]


@pytest.mark.parametrize(
    ("told_s", "seen", "wanted", "words"),
    [
        ([0.4, 0.4, 0.4], (2, 0.4), 2, ""),
        ([0.4, 0.4, 0.4], (2, 0.4), None, ""),
        # Without hooks nothing was seen.
        ([0.4, 0.4, 0.4], (None, 0.0), 2, ""),
        ([None, None, None], (2, 0.4), 2, ""),
        # A processor taken away between a mark and a hook says nothing if it is rare.
        ([0.4, 0.5, 0.4], (2, 0.4), 2, ""),
        ([0.5], (2, 0.4), 2, ""),
        ([0.5, 0.5, 0.5], (2, 0.4), 2, "recompute_s holds 1.5000 s in 3 steps, of which forwards"),
        ([0.4, 0.3, 0.4], (2, 0.4), 2, "recompute_s shorter than the forwards computed again in 1"),
        ([0.4, 0.4, 0.4], (1, 0.4), 2, "forwards computed again otherwise than checkpoint says in"),
        ([0.4, 0.4, 0.4], (1, 0.4), 0, "forwards computed again otherwise than checkpoint says in"),
    ],
)
def test_forwards_computed_again_are_those_asked_for_and_last_as_long_as_told(
    told_s: list[float | None], seen: tuple[int | None, float], wanted: int | None, words: str
) -> None:
    faults = TimeFaults()
    faults.parts.stage = StageFacts(GROUPS, recomputed=places(wanted))
    for step, recompute_s in enumerate(told_s):
        spans = [Span("forward", 0, 0.0, 0.5), Span("backward", 0, 0.5, 1.2)]
        times = StepTimes(1.2, 0.0, spans, LAYERS, 0, None, waiting_cpu_s=0.0)
        record = step_record(
            1.2,
            step=step,
            start_s=2.0 * step,
            forward_s=0.5,
            backward_s=0.7,
            groups=RIGHT,
            recompute_s=recompute_s,
        )
        count, seconds = seen
        at = 2.0 * step
        faults.compare(
            record, times, SeenStep(1.2, 1.2, at, at, recomputed=places(count), recompute_s=seconds)
        )
    found = faults.told()
    assert len(found) == bool(words), found
    assert "".join(found).startswith(words)


@pytest.mark.parametrize(
    ("did", "words"),
    [
        ([("forward", 0, 0), ("forward", 0, 1), ("forward", 1, 0)], ""),
        # Without hooks nothing was seen.
        ([], ""),
        ([("forward", 0, 0), ("forward", 1, 0), ("forward", 0, 1)], "forward spans of other parts"),
        ([("forward", 0, 0), ("forward", 0, 1)], "forward spans of other parts"),
    ],
)
def test_spans_are_of_the_parts_and_micro_batches_that_were_computed(
    did: list[tuple[Kind, int, int]], words: str
) -> None:
    """The loss is booked to a forward that was, and what else is a span has no micro-batch."""
    spans = [
        *(Span("forward", 0, 0.0, 0.2), Span("forward", 0, 0.2, 0.25), Span("wait", 1, 0.25, 0.3)),
        *(Span("forward", 1, 0.3, 0.5), Span("forward", 0, 0.6, 0.7, part=1)),
        Span("optimizer", None, 0.7, 0.8),
    ]
    times = StepTimes(1.2, 0.0, spans, {}, 0, None)
    faults = PartFaults(Faults())
    order = tuple(Action(kind, m, part) for kind, part, m in did)
    faults._compare_places(times, SeenStep(1.2, 1.2, 0.0, 0.0, order=order), "train step 0")
    found = faults.faults.told()
    assert len(found) == bool(words), found
    assert "".join(found).startswith(words)


@pytest.mark.parametrize(
    ("stage", "kind", "good"),
    [
        (StageFacts(untrained=[0]), "backward", True),
        (StageFacts(untrained=[1]), "backward", False),
        (StageFacts(), "backward", False),
        (StageFacts(nothing_left=[0]), "weights", True),
        (StageFacts(untrained=[0]), "weights", False),
    ],
)
def test_only_a_part_without_such_work_may_have_spans_in_which_none_was_seen(
    stage: StageFacts, kind: Kind, good: bool
) -> None:
    """torch's engine goes backward through a part that has nothing to train, where nothing is."""
    name: SpanName = "backward" if kind == "backward" else "weights"
    spans = [Span(name, 0, 0.0, 0.2, part=1), Span(name, 0, 0.2, 0.3), Span(name, 1, 0.3, 0.4)]
    faults = PartFaults(Faults(), stage)
    seen = SeenStep(1.2, 1.2, 0.0, 0.0, order=(Action(kind, 0, 1),))
    faults._compare_places(StepTimes(1.2, 0.0, spans, {}, 0, None), seen, "train step 0")
    assert (faults.faults.told() == []) == good
