"""The table: matches of contestants, the ratios that they give, and how these are written."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.render.formats import print_frame
from analysis.statistics.intervals import UNKNOWN, Interval, ratio_of_pairs
from benchmarks.turns import TIMEOUT_S, Entry, Taken, compete
from gnnhpc.core.provenance import cpu_model, git_commit


@dataclass(frozen=True)
class Comparison:
    """One ratio: `factor` times the reference over ours, so that more is better."""

    what: str
    ours: str
    """Name of a contestant."""
    reference: str | tuple[str, ...] | float
    """Another contestant; several, of which the fastest has to meet the goal; or a limit."""
    goal: float | None = None
    """The smallest ratio that is good enough."""
    of: str = "seconds"
    """Name of the number that both measured."""
    reference_of: str | None = None
    """Name of the reference's number, if another."""
    factor: float = 1.0


@dataclass(frozen=True)
class Match:
    """Contestants that take turns, and what is compared of them."""

    contestants: Mapping[str, Entry]
    comparisons: Sequence[Comparison]
    rounds: int = 9
    warmup: int = 2
    processes: int | None = None
    """How many times all contestants start anew; each time gives one pair, of the medians over
    rounds. None starts them once, and each round is a pair."""
    threads: int | None = None
    """Threads of every contestant; None takes those of the command."""
    cpus: int = 1
    """The fewest CPUs on which the comparison means anything."""
    gpus: int = 0
    """The fewest GPUs."""
    timeout_s: float = TIMEOUT_S
    """The most seconds that a contestant takes to get ready, or for a turn."""


@dataclass(frozen=True)
class Row:
    """One ratio as it was measured; None where it was not, with the reason in `met`."""

    what: str
    goal: float | None
    met: str
    """yes or no, or why there is neither."""
    ours: float | None = None
    reference: float | None = None
    ratio: Interval | None = None
    failed: bool = False
    """The project's own contestant failed."""

    @property
    def columns(self) -> dict[str, object]:
        numbers = {"ours": self.ours, "reference": self.reference}
        numbers |= (self.ratio or UNKNOWN).columns("ratio")
        return {"what": self.what, **numbers, "goal": self.goal, "met": self.met}


def measure(match: Match, threads: int, *, quick: bool = False) -> Iterator[Row]:
    """Let the contestants compete; yields a row for each comparison.

    With `quick` the sizes are small and goals mean nothing.
    """
    lacking = _lacking(match)
    if lacking is not None:
        why = f"not measured: {lacking}"
        yield from (Row(each.what, each.goal, why) for each in match.comparisons)
        return
    rounds, warmup = (2, 1) if quick else (match.rounds, match.warmup)
    taken: dict[str, list[Taken]] = defaultdict(list)
    missing: dict[str, str] = {}
    for _ in range(match.processes or 1):
        found, failed = compete(
            match.contestants,
            rounds,
            match.threads or threads,
            warmup,
            ours={each.ours for each in match.comparisons},
            timeout_s=match.timeout_s,
        )
        missing |= failed
        for name, turns in found.items():
            medians = pd.DataFrame(turns).median().to_dict()
            taken[name] += turns if match.processes is None else [medians]
    for each in match.comparisons:
        yield from _rows(each, taken, missing, quick=quick)


def _lacking(match: Match) -> str | None:
    """What a match needs and this machine has too few of, in words."""
    cpus, gpus = len(os.sched_getaffinity(0)), 0
    if match.gpus:
        import torch

        gpus = torch.cuda.device_count()
    for unit, here, needed in (("CPU", cpus, match.cpus), ("GPU", gpus, match.gpus)):
        if here < needed:
            return f"{here} {unit}{'' if here == 1 else 's'}, {needed} needed"
    return None


def _rows(
    comparison: Comparison,
    taken: Mapping[str, list[Taken]],
    missing: Mapping[str, str],
    *,
    quick: bool,
) -> Iterator[Row]:
    """A row for each reference, of which the fastest has the goal; a round or process is a pair."""
    goal, reference, factor = comparison.goal, comparison.reference, comparison.factor
    if comparison.ours in missing:
        why = f"not measured: {missing[comparison.ours]}"
        yield Row(comparison.what, goal, why, failed=True)
        return
    ours = np.array([turn[comparison.of] for turn in taken[comparison.ours]])
    names = reference if isinstance(reference, tuple) else (reference,)
    of = comparison.reference_of or comparison.of
    measured = {
        name: np.full(len(ours), name)
        if isinstance(name, float)
        else np.array([turn[of] for turn in taken[name]])
        for name in names
        if name not in missing
    }
    best = min(measured, key=lambda name: np.median(measured[name]), default=None)
    for name in names:
        what = comparison.what if len(names) == 1 else f"{comparison.what}, {name}"
        its_goal = goal if best is None or name == best else None
        if name not in measured:
            yield Row(what, its_goal, f"not measured: {missing[name]}")
            continue
        what += ": the fastest form" if len(names) > 1 and name == best else ""
        ratio = ratio_of_pairs(measured[name], ours, factor, by_ranks=True)
        met = "no goal" if its_goal is None else "yes" if ratio.value >= its_goal else "no"
        met = "not compared: --quick" if quick and its_goal is not None else met
        medians = float(np.median(ours)), factor * float(np.median(measured[name]))
        yield Row(what, its_goal, met, *medians, ratio)


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Replace the file by one with these rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame([row.columns for row in rows]).to_csv(path, index=False)


def show(rows: Sequence[Row]) -> None:
    """Print the machine and the rows."""
    cpus, commit = len(os.sched_getaffinity(0)), (git_commit() or "unknown")[:12]
    print(f"{cpu_model()}, {cpus} CPUs, load {os.getloadavg()[0]:.1f}, commit {commit}")
    print("ratio = reference / ours, with its 95 % interval over rounds, or over processes where")
    print("each has both; goal = the least ratio")
    print_frame(pd.DataFrame([row.columns for row in rows]))
