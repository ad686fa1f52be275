"""A comparison of two runs as it is printed and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.load.comparable import differences
from analysis.load.read_cell_flags import count_flags
from analysis.render.document import Table
from analysis.render.formats import atomic_output_folder, write_table
from analysis.statistics.intervals import CONFIDENCE
from analysis.summary.compare_runs import SOURCES, Comparison, Match

_NOTES = (
    "b_over_a is the ratio of pairs or runs, averaged by its logarithm; all intervals hold "
    f"together at {CONFIDENCE:.0%}.",
    "relative is the same ratio of a group's seconds over those of the other groups of the same "
    "step, by medians: it is free of what slows all of them.",
)


def comparison_lines(found: Comparison) -> Iterator[str]:
    """What the runs differ in, what only one has, and whether the losses agree."""
    train = [match for match in found.matches if match.phase == "train"]
    for line in (*_environments(train), *_machines(found, train)):
        yield f"differs: {line}"
    for side, run in (("A", found.a), ("B", found.b)):
        if words := count_flags(run.cells.loc[run.cells["counts"].astype(bool), "flags"]):
            yield f"flagged in {side}: {', '.join(words)}"
    yield from found.only_in_one
    apart = [f"{cell}: {cause}" for cell, cause in found.losses.items() if cause]
    yield from (f"learns something else: {line}" for line in apart)
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


def _machines(found: Comparison, train: Sequence[Match]) -> Iterator[str]:
    """The hosts, and whether both runs met the same hours of them, which no interval shows."""
    mine, theirs = (run.hosts or "none recorded" for run in (found.a, found.b))
    if mine != theirs:
        yield f"machines: {mine} in A, {theirs} in B"
    turns = sum(match.alternated for match in train)
    some = f", but for {turns} configurations" if turns else ""
    yield (
        "time: the runs took turns, and their repeats are compared in pairs"
        if turns == len(train)
        else f"time: the runs were measured one after the other{some}: a change of the machines "
        "between them counts as a difference of the runs"
    )


def result_lines(found: Comparison) -> Iterator[str]:
    """The groups of layers that became slower, and the verdict, which decides the exit status."""
    slower = found.groups[found.groups["slower"] != ""].groupby("cell", sort=False)
    for name, groups in slower:
        yield f"layer groups slower in {name}: {', '.join(groups['what'] + ' ' + groups['slower'])}"
    compared = found.steps["low"].count()
    if not compared:
        yield f"no verdict: {'; '.join(found.steps['verdict'].unique())}"
        return
    without = len(found.steps) - compared
    rest = f"; {without} without an interval" if without else ""
    slower_steps = (found.steps["slower"] != "").sum()
    parts = [f"{slower_steps} step times"] if slower_steps else []
    parts += [f"layer groups of {slower.ngroups} configurations"] if slower.ngroups else []
    verdict = f"SLOWER: {' and '.join(parts)}" if parts else "nothing shown to be slower"
    yield f"{verdict} ({compared} compared, tolerance {found.tolerance:.1%}{rest})"


def write_comparison(found: Comparison, out: Path) -> None:
    """Write tables of steps and groups as CSV, Markdown and LaTeX, and the lines as compare.txt."""
    steps, groups = (frame.drop(columns="slower") for frame in (found.steps, found.groups))
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
