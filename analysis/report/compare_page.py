"""A comparison of two runs as it is printed and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from analysis.load.comparable import differences
from analysis.load.flags import count_flags
from analysis.render.document import Table
from analysis.render.pages import atomic_output_folder, write_table
from analysis.report.run_facts import some_hosts
from analysis.statistics.power import CONFIDENCE
from analysis.statistics.sample import Sample
from analysis.summary.compare_runs import SOURCES, Compared, Comparison, Match

_NOTES = (
    "b_over_a is the ratio of pairs or runs, averaged by its logarithm; all intervals hold "
    f"together at {CONFIDENCE:.0%}.",
    "relative is the same ratio of a group's seconds over those of the other groups of the same "
    "step, by medians: it is free of what slows all of them.",
)


def comparison_lines(found: Comparison) -> Iterator[str]:
    """What the runs differ in, what only one has, and whether the losses agree."""
    train = [match for match in found.matches if match.phase == "train"]
    for line in (*_environments(train), *_hosts(found), _when(train)):
        yield f"differs: {line}"
    for side, run in (("A", found.a), ("B", found.b)):
        if words := count_flags(run.cells.loc[run.cells["counts"].astype(bool), "flags"]):
            yield f"flagged in {side}: {', '.join(words)}"
    yield from found.only_in_one
    apart = [f"{cell}: {cause}" for cell, cause in found.losses.items() if cause]
    for line in apart:
        yield f"learns something else: {line}"
    if found.losses and not apart:
        yield f"losses: they agree within rounding in all {len(found.losses)} common cells"


def _environments(train: Sequence[Match]) -> Iterator[str]:
    """Differing environments, and versions of a custom model, whose digest is a setting."""
    found: Counter[tuple[str, str, str]] = Counter()
    for match in train:
        both = [
            {**one.environment, "sources of the model": str(one.settings.get(SOURCES))}
            for one in match.sides
        ]
        found.update((name, *values) for name, values in differences(*both).items())
    for (name, mine, theirs), times in found.items():
        share = "" if times == len(train) else f" ({times} of {len(train)} configurations)"
        yield f"{name}: {mine} in A, {theirs} in B{share}"
    if not found:
        yield "nothing of code, versions, CPU, threads and kernels"


def _hosts(found: Comparison) -> Iterator[str]:
    mine, theirs = (some_hosts(run) or "none recorded" for run in (found.a, found.b))
    if mine != theirs:
        yield f"machines: {mine} in A, {theirs} in B"


def _when(train: Sequence[Match]) -> str:
    """Whether both met the same hours of the machine, which intervals cannot show."""
    turns = sum(match.alternated for match in train)
    if turns == len(train):
        return "time: the runs took turns, and their repeats are compared in pairs"
    some = f", but for {turns} configurations" if turns else ""
    return (
        f"time: the runs were measured one after the other{some}: a change of the machines between "
        "them counts as a difference of the runs"
    )


def result_lines(found: Comparison) -> Iterator[str]:
    """The groups of layers that became slower, and the verdict."""
    slower: dict[str, list[str]] = {}
    for row in found.slower_groups:
        slower.setdefault(row.match.name, []).append(_slower_group(row, found.tolerance))
    for name, words in slower.items():
        yield f"layer groups slower in {name}: {', '.join(words)}"
    yield _verdict(found, len(slower))


def _slower_group(row: Compared, tolerance: float) -> str:
    ratio = row.slower_by(tolerance) or row.ratio
    words = f"{row.what} {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return words if ratio is row.ratio else f"{words} relative to the other layers of the step"


def _verdict(found: Comparison, slower_groups: int) -> str:
    """What decides the exit status."""
    compared = sum(row.ratio.low is not None for row in found.steps)
    if not compared:
        return f"no verdict: {'; '.join(dict.fromkeys(row.ratio.basis for row in found.steps))}"
    without = len(found.steps) - compared
    rest = f"; {without} without an interval" if without else ""
    of = f"{compared} compared, tolerance {found.tolerance:.1%}{rest}"
    steps = len(found.slower_steps)
    parts = [f"{steps} step times"] if steps else []
    parts += [f"layer groups of {slower_groups} configurations"] if slower_groups else []
    return (
        f"SLOWER: {' and '.join(parts)} ({of})" if parts else f"nothing shown to be slower ({of})"
    )


def comparison_frame(rows: Sequence[Compared], found: Comparison) -> pd.DataFrame:
    """One row a comparison: seconds in A and in B, the ratios, their intervals and the verdict."""
    return pd.DataFrame(
        {
            "cell": row.match.name,
            "phase": row.match.phase,
            "what": row.what,
            "runs": f"{len(row.a.runs)}, {len(row.b.runs)}",
            "a_s": _seconds(row.a, found.of),
            "b_s": _seconds(row.b, found.of),
            "b_over_a": row.ratio.value,
            "low": row.ratio.low,
            "high": row.ratio.high,
            "from": row.ratio.basis if row.ratio.low is not None else "",
            "verdict": row.verdict(found.tolerance),
            **(row.relative.columns("relative") if row.relative else {}),
        }
        for row in rows
    )


def _seconds(sample: Sample, of: str) -> float:
    """The mean over runs of their means or medians."""
    return (sample.mean if of == "mean" else sample.median).value


def write_comparison(found: Comparison, out: Path) -> None:
    """Write tables of steps and groups as CSV, Markdown and LaTeX, and the lines as compare.txt."""
    steps, groups = (comparison_frame(rows, found) for rows in (found.steps, found.groups))
    tables = (
        Table("compare_steps", "Seconds a step in run A and run B", steps, _NOTES[:1]),
        Table("compare_groups", "Seconds of groups of layers a training step", groups, _NOTES),
    )
    lines = [*comparison_lines(found), *result_lines(found)]
    with atomic_output_folder(out) as folder:
        for table in tables:
            if len(table.frame):
                write_table(table, folder)
        (folder / "compare.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
