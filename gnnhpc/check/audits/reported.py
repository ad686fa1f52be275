"""Whether losses and accuracies in files and in the result are those of the outputs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gnnhpc.check.observations import RankObservations
from gnnhpc.check.watches.plain_tally import PlainSum
from gnnhpc.core.layout import Layout
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.reported import ReportedStep
from gnnhpc.records.schema import Check, Phase, final_key

DIGITS = 1e-9
"""Files have nine digits after the point."""


Key = tuple[Phase, int]
"""A phase and a step of it."""
_Sums = Mapping[str, PlainSum]
"""By metric."""


class _Value(NamedTuple):
    value: float
    error: float
    """How far rounding, or outputs that are equally high, may move it."""


def reported(
    observations: Sequence[RankObservations],
    files: Sequence[Sequence[ReportedStep]],
    final: Mapping[str, float],
    layout: Layout,
    loss_stage: int,
    planned: Sequence[Key],
) -> Check:
    """`files` and `observations` in the order of ranks: what stages with the loss report is the
    mean over all replicas of what outputs and raw labels give, and `final` is the last of it; steps
    come as planned, where numbers of the test phase count from the attempt's first evaluation on.
    """
    watched = [each.watched for each in observations if each.watched is not None]
    if len(watched) < len(observations):
        return Check("reported", "unknown", "nothing of it was looked at", {"looks": 0})
    if any(each.findings.wrong["targets"] for each in watched):
        # Of wrong labels follow wrong metrics, which need not be told again.
        return Check("reported", "ok", "labels are wrong, so metrics were not judged", {"looks": 0})
    ranks = layout.replica_ranks(loss_stage)
    taken = [
        {(each.phase, each.step): each.by_metric for each in watched[rank].tallies}
        for rank in ranks
    ]
    wrong = [
        f"rank {rank}{cause}"
        for place, rank in enumerate(ranks)
        for cause in _other_steps(files[rank], taken, place)
    ]
    wrong += [cause for rank in ranks for cause in _other_order(rank, files[rank], planned)]
    wrong += list(_other_final(final, files[ranks[0]]))
    if wrong:
        return Check("reported", "invalid", wrong[0], {"found": len(wrong)})
    detail = "what files and result report is what outputs and raw labels give"
    return Check("reported", "ok", detail, {"looks": sum(len(files[rank]) for rank in ranks)})


def planned_steps(experiment: Experiment, start: int, stop: int) -> list[Key]:
    """Training from step `start` to before `stop`, with an evaluation after each `test_every` and
    at the experiment's end."""
    every = experiment.test_every or experiment.train_steps
    steps: list[Key] = []
    tested = 0
    for step in range(start, stop):
        steps.append(("train", step))
        if (step + 1) % every == 0 or step + 1 == experiment.train_steps:
            steps += [("test", tested + number) for number in range(experiment.test_steps)]
            tested += experiment.test_steps
    return steps


def _other_order(rank: int, steps: Sequence[ReportedStep], planned: Sequence[Key]) -> Iterator[str]:
    """Where a file has other steps than planned, or in another order."""
    first = next((each.step for each in steps if each.phase == "test"), 0)
    found = [(e.phase, e.step - (first if e.phase == "test" else 0)) for e in steps]
    for number, (mine, wanted) in enumerate(itertools.zip_longest(found, planned)):
        if mine != wanted:
            told, plan = (f"{w[0]} step {w[1]}" if w else "none" for w in (mine, wanted))
            yield f"rank {rank}: {told} is step {number} of its file, {plan} was planned"
            return


def _other_steps(
    steps: Sequence[ReportedStep], taken: Sequence[Mapping[Key, _Sums]], place: int
) -> Iterator[str]:
    """What one replica's file reports otherwise; `taken` are all replicas', its own at `place`."""
    told = {(each.phase, each.step): each.metrics for each in steps}
    if told.keys() != taken[place].keys():
        yield f": {len(told)} steps are in the file, {len(taken[place])} were taken"
        return
    for key, metrics in told.items():
        phase, step = key
        everyone = [each[key] for each in taken if key in each]
        for name, value in metrics.items():
            parts = [taken[place][key]] if name == "replica_loss" else everyone
            wanted = _wanted(name, parts)
            if not _agree(value, wanted):
                yield f", {phase} step {step}: {_differs(name, value, wanted)}"


def _wanted(name: str, parts: Sequence[_Sums]) -> _Value | None:
    """A metric over several replicas; None where none has a labelled row."""
    sums = [each["loss" if name == "replica_loss" else name] for each in parts]
    count = sum(each.count for each in sums)
    if not count:
        return None
    return _Value(sum(s.value for s in sums) / count, sum(s.error for s in sums) / count)


def _agree(told: float | None, wanted: _Value | None) -> bool:
    if told is None or wanted is None:
        return told is None and (wanted is None or not math.isfinite(wanted.value))
    return abs(told - wanted.value) <= wanted.error + DIGITS * (1 + abs(wanted.value))


def _differs(name: str, told: float | None, wanted: _Value | None) -> str:
    value = "nothing" if wanted is None else f"{wanted.value:.6g}"
    found = "nothing" if told is None else f"{told:.6g}"
    return f"{found} is reported as {name}, {value} is that of the outputs and the raw labels"


def _other_final(final: Mapping[str, float], steps: Sequence[ReportedStep]) -> Iterator[str]:
    """What the result tells otherwise than the last step of each phase."""
    last: dict[str, float | None] = {}
    for each in {each.phase: each for each in steps}.values():
        for name, value in each.metrics.items():
            last[final_key(each.phase, name)] = value
    # A replica's own loss is told by the loss's ranks alone, which the first may be none of.
    own = {name for name in last if name.endswith("replica_loss")}
    for name in sorted(last.keys() - own | final.keys()):
        told, value = final.get(name), last.get(name)
        if (
            told is None
            or value is None
            or not math.isclose(told, value, rel_tol=DIGITS, abs_tol=DIGITS)
        ):
            yield f"the result's {name} is {told}, of the last step {value}"
