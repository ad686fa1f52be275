"""A comparison of two runs as it is printed and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from analysis.load.comparable import differences
from analysis.load.flags import count_flags
from analysis.render.document import Table
from analysis.render.pages import atomic_output_folder, write_table
from analysis.report.run_facts import some_hosts
from analysis.statistics.power import CONFIDENCE
from analysis.summary.compare_runs import (
    ComparedGroup,
    Comparison,
    groups_frame,
    steps_frame,
)
from analysis.summary.match_runs import Match

_NOTES = (
    "b_over_a is the ratio of pairs or runs, averaged by its logarithm; all intervals hold "
    f"together at {CONFIDENCE:.0%}.",
    "relative is the same ratio of a group's seconds over those of the other groups of the same "
    "step, by medians: it is free of what slows all of them.",
)


def comparison_lines(found: Comparison) -> Iterator[str]:
    """What the runs differ in, what only one has, and whether the losses agree."""
    train = [match for match in found.matches if match.phase == "train"]
    for line in (*_environments(train), *_custom_sources(train), *_hosts(found), _when(train)):
        yield f"differs: {line}"
    for side, run in (("A", found.a), ("B", found.b)):
        if words := count_flags(run.cells.loc[run.cells["counts"].astype(bool), "flags"]):
            yield f"flagged in {side}: {', '.join(words)}"
    yield from found.only_in_one
    for line in found.losses_apart:
        yield f"learns something else: {line}"
    if found.losses_compared and not found.losses_apart:
        yield f"losses: they agree within rounding in all {found.losses_compared} common cells"


def _environments(train: Sequence[Match]) -> Iterator[str]:
    found = Counter(
        (name, *values)
        for match in train
        for name, values in differences(match.a.environment, match.b.environment).items()
    )
    for (name, mine, theirs), times in found.items():
        share = "" if times == len(train) else f" ({times} of {len(train)} configurations)"
        yield f"{name}: {mine} in A, {theirs} in B{share}"
    if not found:
        yield "nothing of code, versions, CPU, threads and kernels"


def _custom_sources(train: Sequence[Match]) -> Iterator[str]:
    """Versions of a custom model, whose digest is a setting."""
    found = {
        (match.a.settings["model"], *digests)
        for match in train
        if (digests := tuple(one.settings.get("model_digest") for one in (match.a, match.b)))
        and digests[0] != digests[1]
        and all(isinstance(digest, str) for digest in digests)
    }
    for model, mine, theirs in sorted(found):
        yield f"sources of {model}: {mine} in A, {theirs} in B"


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
    recorded = Counter(row.seconds.name for row in found.groups)
    slower: dict[str, list[str]] = {}
    for row in found.slower_groups:
        slower.setdefault(row.seconds.name, []).append(_group(row, found.tolerance))
    for name, words in slower.items():
        every = f"all {len(words)}: " if len(words) == recorded[name] > 1 else ""
        yield f"layer groups slower in {name}: {every}{', '.join(words)}"
    yield _verdict(found, len(slower))


def _group(row: ComparedGroup, tolerance: float) -> str:
    shown = row.shown_by(tolerance) or row.seconds
    ratio = shown.ratio
    words = f"{shown.what} {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return words if shown is row.seconds else f"{words} relative to the other layers of the step"


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


def write_comparison(found: Comparison, out: Path) -> None:
    """Write tables of steps and groups as CSV, Markdown and LaTeX, and the lines as compare.txt."""
    steps = steps_frame(found.steps, found.tolerance, found.of)
    groups = groups_frame(found.groups, found.tolerance, found.of)
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
