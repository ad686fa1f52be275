"""Questions about cells: whether all are there, valid, alike, repeated and without a flag."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.artifact.evidence import Evidence, Finding, few
from analysis.loading.attempts import DAMAGED
from analysis.loading.measured_again import measured_again
from analysis.stats.intervals import FEWEST_STEPS

CHECKED = ("self-check", "final-check")
"""Against an independent twin at the start of an attempt and at its end."""


def cells_done(evidence: Evidence) -> Finding:
    cells = evidence.run.cells
    left = cells[cells["status"] != "done"]
    words = few([f"{cell}: {status}" for cell, status in _pairs(left, "status")])
    done = f"{len(cells) - len(left)} of {len(cells)}"
    return Finding("all cells done", left.empty and len(cells) > 0, _with(done, words))


def cells_valid(evidence: Evidence) -> Finding:
    cells = evidence.run.cells
    left = cells[~cells["valid"].astype(bool)]
    words = few([f"{cell}: {flags or 'no result'}" for cell, flags in _pairs(left, "flags")])
    valid = f"{len(cells) - len(left)} of {len(cells)}"
    return Finding("all cells valid", left.empty and len(cells) > 0, _with(valid, words))


def cells_alike(evidence: Evidence) -> Finding:
    cells = evidence.run.cells
    unlike = cells[cells["difference"] != ""]
    words = few([f"{cell}: {how}" for cell, how in _pairs(unlike, "difference")])
    return Finding(
        "cells that are compared are alike in code, versions, CPU, threads and kernels",
        unlike.empty,
        words or f"all {int(cells['valid'].sum())} valid ones",
    )


def repeats(evidence: Evidence) -> Finding:
    """Of every configuration so many cells count."""
    run = evidence.run
    counted = run.cells.assign(counts=run.cells["counts"].astype(bool))
    groups = counted.groupby(list(run.settings), dropna=False, sort=False)
    many = [(str(part["cell"].iloc[0]), int(part["counts"].sum())) for _, part in groups]
    short = [f"{cell}: {count}" for cell, count in many if count < evidence.repeats]
    fewest = min((count for _, count in many), default=0)
    question = f"{evidence.repeats} repeats or more of each configuration"
    found = f"{len(many)} configurations, {fewest} or more that count"
    return Finding(question, bool(many) and not short, few(short) or found)


def enough_steps(evidence: Evidence) -> Finding:
    """Of each configuration and phase, over its repeats; fewer have no interval."""
    run = evidence.run
    counted = run.cells[run.cells["counts"].astype(bool)]
    first = counted.groupby(list(run.settings), dropna=False, sort=False)["cell"].transform("first")
    steps = run.phases.merge(counted[["cell"]].assign(first=first.astype(str)), on="cell")
    many = steps.groupby(["first", "phase"], observed=True, sort=False)["n"].sum()
    rows = many.reset_index().itertuples(index=False, name=None)
    short = [f"{name}: {n} in {phase}" for name, phase, n in rows if n < FEWEST_STEPS]
    fewest = f"{many.min()} at least" if len(many) else "none"
    question = f"{FEWEST_STEPS} steps or more after warm-up in each configuration and phase"
    return Finding(question, len(many) > 0 and not short, few(short) or fewest)


def self_checks(evidence: Evidence) -> Finding:
    """At the start and at the end of every attempt that is used."""
    missing = []
    for result in evidence.results:
        verdicts = {check.name: check.verdict for check in result.audit}
        missing += [
            f"{result.cell}: {name} {verdicts.get(name, 'not made')}"
            for name in CHECKED
            if verdicts.get(name) != "ok"
        ]
    passed = f"{len(evidence.results)} cells, at the start and at the end"
    return Finding(
        "self-checks passed", bool(evidence.results) and not missing, few(missing) or passed
    )


def siblings_agree(evidence: Evidence) -> Finding:
    found = evidence.run.siblings
    named = [f"{one.sibling.name}: {one.departure.words}" for one in found.accusations]
    compared = f"{len(found.compared)} cells held against one another"
    if not found.compared:
        compared = "no two cells of this run must"
    return Finding("cells that must learn the same do", not named, few(named) or compared)


def no_flags(evidence: Evidence) -> Finding:
    cells = evidence.run.cells
    counts = Counter(
        flag for flags in cells["flags"] for flag in dict.fromkeys(flags.split(";")) if flag
    )
    words = ", ".join(f"{flag} {count} of {len(cells)}" for flag, count in counts.most_common())
    return Finding("no flags", not counts, words or f"none on {len(cells)} cells")


def no_second_choice(evidence: Evidence) -> Finding:
    """A valid measurement that another one replaced was perhaps not to somebody's liking.

    Unless a requeue of Slurm's made the job measure its cell once more: nobody chose that.
    """
    attempts = evidence.run.attempts
    requeued = measured_again(attempts)
    replaced = attempts[attempts["valid"].astype(bool) & ~attempts["used"].astype(bool)]
    replaced = replaced[~replaced.index.isin(requeued.index)]
    failed = int((~attempts["valid"].astype(bool)).sum())
    words = few([f"{cell}: attempt {number}" for cell, number in _pairs(replaced, "attempt")])
    found = f"{len(attempts)} attempts at {len(evidence.run.cells)} cells, {failed} not valid"
    if len(requeued):
        found += f", {len(requeued)} measured again by their own job, which Slurm requeued"
    return Finding(
        "no valid measurement was replaced by a later one", replaced.empty, words or found
    )


def records_whole(evidence: Evidence) -> Finding:
    """As each result's SHA-256 of its rank files say; loading has compared them."""
    cells = evidence.run.cells
    damage = evidence.run.checks[evidence.run.checks["name"] == DAMAGED]
    bare = [f"{one.cell}: no digests in its result" for one in evidence.results if not one.records]
    files = sum(len(one.records) for one in evidence.results)
    ok = damage.empty and not bare and bool(files)
    words = few([*damage["detail"], *bare]) or f"{files} rank files of {len(cells)} cells"
    return Finding("records are whole, as their digests say", ok, words)


def _pairs(frame: pd.DataFrame, column: str) -> Iterator[tuple[str, Any]]:
    return zip(frame["cell"].astype(str), frame[column], strict=True)


def _with(count: str, words: str) -> str:
    return f"{count}; {words}" if words else count
