"""Spans that hold more than their work: they began long before it, or ended long after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from gnnhpc.check.watches.faults import in_most
from gnnhpc.check.watches.recomputed_forwards import Place
from gnnhpc.check.watches.second_clock import SeenStep
from gnnhpc.check.watches.work_moments import Moment
from gnnhpc.core.schedule import Kind
from gnnhpc.engines.timing import Span, StepTimes
from gnnhpc.records.schema import Phase, StepRecord

SHARE: Final = 0.2
"""Of spans, above which what is beside their work is no such work."""
STEP_SHARE: Final = 0.02
"""And of the step: a stage of one activation takes next to no time."""
BEGINNING_S: Final[Mapping[Kind, float]] = {"forward": 0.0, "backward": 3e-4, "weights": 0.0}
"""And what a micro-batch's work may take to begin: autograd a tenth of a millisecond."""
ENDING_S: Final = 3e-4
"""And its span to end once its work has: other hooks look at what it gave."""
REFILL_S: Final = 1e-4
"""And what follows each time that another process had the processor: its caches fill again."""
_BEFORE: Final = "before its stage began to compute"
_AFTER: Final = "after its stage had computed"
_NOTHING: Final = "in parts that leave no gradients of weights"
_Beside = Callable[[Span, Moment], float]


@dataclass
class LooseSpans:
    """Of one rank, step after step. What lies between a span's ends and its work's takes
    microseconds, but for what a busy machine takes the processor away, which is not counted, and
    what that leaves behind."""

    _loose: dict[tuple[Phase, Kind, str], list[tuple[float, float]]] = field(default_factory=dict)
    """By kind of span and where, of steps with loose ones: their seconds, and those beside."""
    _with_spans: Counter[tuple[Phase, Kind]] = field(default_factory=Counter)
    """Steps with such spans."""

    def see(
        self,
        record: StepRecord,
        times: StepTimes,
        seen: SeenStep,
        loss_part: int | None,
        nothing_left: Collection[int] = (),
    ) -> None:
        """A step's; `loss_part` is the one whose backwards begin with the loss's, and parts in
        `nothing_left` have nothing to do in spans of weights."""
        kinds: tuple[Kind, ...] = ("forward", "backward", "weights")
        switches = times.involuntary_switches
        for kind in kinds:
            total = times.total(kind)
            self._with_spans[record.phase, kind] += total > 0
            begins = _of(seen.begins, kind, loss_part if kind == "backward" else None)
            if kind == "backward":
                begins |= seen.loss_begins
            ends = _of(seen.ends, kind, None)
            places = [_place(span) for span in times.spans if span.name == kind]
            none = {
                place: Moment(0.0, None)
                for place in places
                if kind == "weights" and place[0] in nothing_left and place not in ends
            }
            for where, moments, beside, each_s in (
                (_BEFORE, begins, _before, BEGINNING_S[kind]),
                (_AFTER, ends, _after, ENDING_S),
                (_NOTHING, none, _whole, ENDING_S),
            ):
                found = sum(
                    beside(span, moments[_place(span)])
                    for span in times.spans
                    if span.name == kind and _place(span) in moments
                )
                each_of_all_s = each_s * len(moments)
                if found > most_beside(total, record.wall_s, each_of_all_s, switches):
                    place = record.phase, kind, where
                    self._loose.setdefault(place, []).append((total, found))

    def told(self) -> str | None:
        """What was so in most steps."""
        for (phase, kind, where), steps in self._loose.items():
            if in_most(len(steps), self._with_spans[phase, kind]):
                total, beside_s = (sum(each) for each in zip(*steps, strict=True))
                return (
                    f"{kind} spans of {len(steps)} steps hold {total:.3f} s, of which "
                    f"{beside_s:.3f} s {where}"
                )
        return None


def most_beside(total_s: float, step_s: float, least_s: float, switches: int = 0) -> float:
    """Seconds beside their work that spans of `total_s` may hold in a step of `step_s`, in which
    others had the processor so often; `least_s` whatever these are."""
    return max(SHARE * total_s, STEP_SHARE * step_s, least_s) + REFILL_S * switches


def _of(
    moments: Mapping[tuple[Kind, Place], Moment], kind: Kind, without: int | None
) -> dict[Place, Moment]:
    return {p: at for (of, p), at in moments.items() if of == kind and p[0] != without}


def _place(span: Span) -> tuple[int, int]:
    """-1 for a span of the whole step, which no work is seen at."""
    return span.part, -1 if span.microbatch is None else span.microbatch


def _whole(span: Span, _moment: Moment) -> float:
    """Seconds of a span that needs none, less what the thread waited for a processor."""
    return max(0.0, span.seconds - waited_in(span))


def waited_in(span: Span) -> float:
    """Seconds in a span that the thread waited for a processor."""
    return waited_between(span.delay_before_s, span.delay_after_s)


def _before(span: Span, begin: Moment) -> float:
    """Seconds in a span before its work began, less what the thread waited for a processor."""
    waited_s = waited_between(span.delay_before_s, begin.delay_s)
    return max(0.0, min(span.end_s, begin.at_s) - span.start_s - waited_s)


def _after(span: Span, end: Moment) -> float:
    """And after it had ended."""
    waited_s = waited_between(end.delay_s, span.delay_after_s)
    return max(0.0, span.end_s - max(span.start_s, end.at_s) - waited_s)


def waited_between(before_s: float | None, after_s: float | None) -> float:
    """Between two readings of how long a thread has; 0 where there are none."""
    return 0.0 if before_s is None or after_s is None else max(0.0, after_s - before_s)
