"""Holds the parts of a step's time against what hooks and a second clock saw of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from gnnhpc.batches.batch import Loading
from gnnhpc.batches.stopwatch import Timed
from gnnhpc.check.watches.faults import Faults, in_most
from gnnhpc.check.watches.layer_times import LayerSeconds
from gnnhpc.check.watches.loose_spans import ENDING_S, LooseSpans, most_beside, waited_in
from gnnhpc.check.watches.recomputed_forwards import Place
from gnnhpc.check.watches.second_clock import RATE, SUM_S, SeenStep
from gnnhpc.check.watches.sum_faults import SumFaults
from gnnhpc.core.schedule import Kind
from gnnhpc.engines.timing import Span, SpanName, StepTimes
from gnnhpc.records.schema import StepRecord

TOLERANCE_S: Final = 1e-4
"""Between two readings that do not nest, or of a device's clock."""
RECOMPUTE_SHARE: Final = 0.1
"""Of forwards computed again, what their marks may hold beside their layers."""


@dataclass(frozen=True)
class StageFacts:
    """What of a stage decides which parts its steps have."""

    groups: Mapping[str, str] = field(default_factory=dict)
    """Of its layers, each one's group."""
    shares_gradients: bool = False
    """Whether its replicas average gradients."""
    loss_part: int | None = 0
    """Of its parts, the one whose backwards begin with the loss's; None where none does."""
    several_devices: bool = False
    """Then its spans are of the whole step."""
    untrained: Collection[int] = ()
    """Its parts with nothing to train: no gradient need pass through them, but torch's engine goes
    backward there all the same."""
    nothing_left: Collection[int] = ()
    """Its parts without a layer that leaves gradients of weights: in their spans of weights nothing
    is seen."""
    recomputed: Sequence[Place] | None = None
    """Forwards that a training step computes again, sorted; None where it depends on earlier
    stages."""


@dataclass
class PartFaults:
    """Of one rank, step after step; `faults` are told with those of whole steps."""

    faults: Faults
    stage: StageFacts = field(default_factory=StageFacts)
    _loose: LooseSpans = field(default_factory=LooseSpans)
    _sums: SumFaults = field(init=False)
    _optimized: int = 0
    """Steps whose optimizer's span was held against its step."""
    _optimizer_longer: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of the optimizer's span, and of its step in it, of steps whose span held more."""
    _recomputed_longer: list[tuple[float, float]] = field(default_factory=list)
    """Seconds recorded for forwards computed again and seen, of steps that recorded more."""
    _recomputing: int = 0
    """Steps in which some were."""
    _backwards: int = 0
    """Steps whose layers' backwards were held against the stage's."""
    _backwards_shorter: list[tuple[float, float]] = field(default_factory=list)
    """Seconds of layers' backwards, and of the stage's that was seen, of steps that lack some."""

    def __post_init__(self) -> None:
        self._sums = SumFaults(self.faults)

    def compare(self, record: StepRecord, times: StepTimes, seen: SeenStep, where: str) -> None:
        self._compare_groups(record, times, where)
        self._compare_backwards(record, times, seen)
        self._compare_reading(record, seen, where)
        self._compare_optimizer(record, times, seen, where)
        self._compare_sharing(record, times, where)
        self._sums.compare(record, times, seen, where)
        self._compare_recomputed(record, times, seen, where)
        self._compare_places(times, seen, where)
        if times.waiting_cpu_s is not None:
            loss_part, nothing_left = self.stage.loss_part, self.stage.nothing_left
            self._loose.see(record, times, seen, loss_part, nothing_left)

    def _compare_groups(self, record: StepRecord, times: StepTimes, where: str) -> None:
        """The record's groups are the sums of their own layers, and fit into the step's parts."""
        if not self.stage.groups:
            return
        sums = {group: [0.0, 0.0] for group in self.stage.groups.values()}
        for layer, (forward, backward) in times.layers.items():
            sums[self.stage.groups[layer]][0] += forward
            sums[self.stage.groups[layer]][1] += backward
        for group, expected in sums.items():
            found = record.groups.get(group, [math.nan, math.nan])
            if not all(abs(a - b) <= SUM_S for a, b in zip(found, expected, strict=True)):
                self.faults.add(
                    "a group's seconds that are not those of its layers",
                    f"{where}: {group} {found}, {expected} in its layers",
                )
                return
        parts: tuple[SpanName, SpanName] = ("forward", "backward")
        totals = times.total("forward"), times.total_backward()
        for place, (part, total) in enumerate(zip(parts, totals, strict=True)):
            layers = sum(each[place] for each in sums.values())
            if not layers <= total * (1 + RATE) + TOLERANCE_S:
                self.faults.add(
                    f"layers whose {part} is longer than the stage's",
                    f"{where}: {layers:.6f} s in a {part} of {total:.6f} s",
                )

    def _compare_backwards(self, record: StepRecord, times: StepTimes, seen: SeenStep) -> None:
        """Layers' backwards are together as long as what was seen of the stage's.

        Not where forwards were computed again: what these begin from is put back in no layer.
        """
        seen_s = seen.backward_s + seen.weights_s
        if not self.stage.groups or times.waiting_cpu_s is None or seen.recomputed or not seen_s:
            return
        self._backwards += 1
        told_s = sum(backward for _, backward in times.layers.values())
        spans = [span for span in times.spans if span.name in ("backward", "weights")]
        missing_s = seen_s - told_s - sum(waited_in(span) for span in spans)
        each_s, switches = ENDING_S * len(spans), times.involuntary_switches
        if missing_s > most_beside(seen_s, record.wall_s, each_s, switches):
            self._backwards_shorter.append((told_s, seen_s))

    def compare_layers(
        self,
        record: StepRecord,
        times: StepTimes,
        seen: Sequence[LayerSeconds],
        kind: Literal["forward", "backward"] = "forward",
    ) -> None:
        """Seconds of layers lie within what was seen of them in a step looked at closely; a
        device's the host's clock cannot tell, and those on several have none."""
        if times.waiting_cpu_s is None or not self.stage.groups:
            return
        for names, least_s, most_s in seen:
            told = sum(times.layers.get(name, (0.0, 0.0))[kind == "backward"] for name in names)
            if not least_s * (1 - RATE) - SUM_S <= told <= most_s * (1 + RATE) + SUM_S:
                self.faults.add(
                    f"{kind} seconds of layers that these did not take",
                    f"{record.phase} step {record.step}: {' and '.join(names)} {told:.6f} s, "
                    f"{least_s:.6f} to {most_s:.6f} s seen",
                )
                return

    def compare_loading(self, record: StepRecord, loading: Loading | None) -> None:
        """What making the batch took, whichever thread made it, lies within another clock's
        readings; and the edges are as many as were drawn."""
        where = f"{record.phase} step {record.step}"
        drawn = None if loading is None else loading.edges
        if record.sampled_edges != drawn:
            detail = f"{where}: {record.sampled_edges}, {drawn} were drawn"
            self.faults.add("sampled_edges that were not drawn", detail)
        if loading is None:
            return
        for name, timed in (("sample_s", loading.sampled), ("gather_s", loading.gathered)):
            self._compare_timed(name, getattr(record, name), timed, where)

    def _compare_timed(
        self, name: str, told: float | None, timed: Timed | None, where: str
    ) -> None:
        if timed is None or told is None:
            good, seen = timed is None and told is None, "one of them not timed"
        else:
            least_s, most_s = timed.least_s * (1 - RATE), timed.most_s * (1 + RATE)
            good = least_s - SUM_S <= told <= most_s + SUM_S
            seen = f"{timed.least_s:.6f} to {timed.most_s:.6f} s seen"
        if not good:
            self.faults.add(f"{name} that a second clock did not see", f"{where}: {told} s, {seen}")

    def _compare_reading(self, record: StepRecord, seen: SeenStep, where: str) -> None:
        """What taking the batch took lies within another clock's readings."""
        if seen.taken is not None:
            self._compare_timed("data_s", record.data_s, seen.taken, where)

    def _compare_optimizer(
        self, record: StepRecord, times: StepTimes, seen: SeenStep, where: str
    ) -> None:
        """Of a device's optimizer the host sees when it was given out, not how long it took."""
        if not seen.optimizer_steps:
            return
        total = times.total("optimizer")
        if not any(span.name == "optimizer" for span in times.spans):
            self.faults.add("an optimizer's step in no optimizer span", where)
        elif times.waiting_cpu_s is not None and not (
            total >= seen.optimizer_s * (1 - RATE) - SUM_S
        ):
            self.faults.add(
                "optimizer spans shorter than the optimizer's step",
                f"{where}: {total:.6f} s, {seen.optimizer_s:.6f} s seen",
            )
        elif times.waiting_cpu_s is not None:
            self._optimized += 1
            # Gradients are set to zero in a span of its own, before.
            *before, last = [span for span in times.spans if span.name == "optimizer"]
            for span, work_s in [(last, seen.optimizer_s), *((s, seen.zeroed_s) for s in before)]:
                beside_s = span.seconds - waited_in(span) - work_s
                if beside_s > most_beside(span.seconds, record.wall_s, ENDING_S):
                    self._optimizer_longer.append((span.seconds, work_s))
                    break

    def _compare_sharing(self, record: StepRecord, times: StepTimes, where: str) -> None:
        shares = self.stage.shares_gradients and record.phase == "train"
        if shares and times.arrival_s is None:
            self.faults.add("gradients shared in no all-reduce span", where)

    def _compare_recomputed(
        self, record: StepRecord, times: StepTimes, seen: SeenStep, where: str
    ) -> None:
        """Those that the spec asks for, and their time; a device's the host's clock cannot tell."""
        if seen.recomputed is None:
            return
        wanted = self.stage.recomputed if record.phase == "train" else []
        again = len(seen.recomputed)
        if wanted is not None and seen.recomputed != list(wanted):
            other = sorted(set(seen.recomputed) ^ set(wanted))[:4]
            self.faults.add(
                "forwards computed again otherwise than checkpoint says",
                f"{where}: {again}, where it asks for {len(wanted)}; (part, micro-batch) {other}",
            )
        self._recomputing += again > 0
        told = record.recompute_s
        if told is None or times.waiting_cpu_s is None:
            return
        margin_s = TOLERANCE_S * (again + 1)
        if not told >= seen.recompute_s * (1 - RATE) - margin_s:
            self.faults.add(
                "recompute_s shorter than the forwards computed again",
                f"{where}: {told:.6f} s, {seen.recompute_s:.6f} s seen",
            )
        elif not told <= seen.recompute_s * (1 + RECOMPUTE_SHARE) + margin_s:
            self._recomputed_longer.append((told, seen.recompute_s))

    def _compare_places(self, times: StepTimes, seen: SeenStep, where: str) -> None:
        """Spans are of the parts and micro-batches that were computed, in the same order."""
        kinds: tuple[Kind, ...] = ("forward", "backward", "weights")
        for kind in kinds:
            did = [(each.part, each.microbatch) for each in seen.order if each.kind == kind]
            unseen = set(self._without(kind)) - {part for part, _ in did}
            told = [place for place in _places(times.spans, kind) if place[0] not in unseen]
            # Several devices' spans are of the whole step; without hooks nothing was seen.
            if told and did and told != did:
                pairs = itertools.zip_longest(told, did)
                number, (one, other) = next((n, p) for n, p in enumerate(pairs) if p[0] != p[1])
                self.faults.add(
                    f"{kind} spans of other parts or micro-batches than were computed",
                    f"{where}: number {number} is (part, micro-batch) {one}, {other} was seen",
                )

    def _without(self, kind: Kind) -> Collection[int]:
        """Parts whose spans of this kind need hold nothing."""
        return {"backward": self.stage.untrained, "weights": self.stage.nothing_left}.get(kind, ())

    def told(self) -> list[str]:
        """What is wrong in most steps."""
        found = []
        if in_most(len(self._recomputed_longer), self._recomputing):
            recorded, seen = (sum(each) for each in zip(*self._recomputed_longer, strict=True))
            found.append(
                f"recompute_s holds {recorded:.4f} s in {len(self._recomputed_longer)} steps, of "
                f"which forwards computed again took {seen:.4f} s"
            )
        if in_most(len(self._backwards_shorter), self._backwards):
            recorded, seen = (sum(each) for each in zip(*self._backwards_shorter, strict=True))
            found.append(
                f"backwards of layers hold {recorded:.4f} s in {len(self._backwards_shorter)} "
                f"steps, in which that of their stage took {seen:.4f} s"
            )
        return found

    def loose(self) -> str | None:
        """Spans that hold more than their work in most steps."""
        if in_most(len(self._optimizer_longer), self._optimized):
            held, seen = (sum(each) for each in zip(*self._optimizer_longer, strict=True))
            return (
                f"optimizer spans of {len(self._optimizer_longer)} steps hold {held:.3f} s, of "
                f"which the optimizer took {seen:.3f} s"
            )
        return self._sums.loose() or self._loose.told()


def _places(spans: Sequence[Span], name: SpanName) -> list[Place]:
    """Parts and micro-batches in the order in which their first spans of a kind began."""
    found = (s for s in sorted(spans, key=lambda span: span.start_s) if s.name == name)
    return list(dict.fromkeys((s.part, s.microbatch) for s in found if s.microbatch is not None))
