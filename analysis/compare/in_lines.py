"""A comparison of two runs as it is printed and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from analysis.compare.compared_groups import ComparedGroup, groups_frame
from analysis.compare.ratios import compared_frame
from analysis.compare.two_runs import Comparison
from analysis.render.named_table import NamedTable
from analysis.render.output_folder import atomic_output_folder
from analysis.render.table_files import write_table
from gnnhpc.core.student_t import CONFIDENCE

STEP_COLUMNS = ("cell", "phase", "runs", "a_s", "b_s", "b_over_a", "low", "high", "from", "verdict")
_TOGETHER = (
    "b_over_a is the ratio of pairs or runs, averaged by its logarithm; all intervals hold "
    f"together at {CONFIDENCE:.0%}."
)
_BESIDE = (
    "beside_others is the same ratio of a group's seconds over those of the other groups of the "
    "same step, by medians: free of what slows all of them."
)


def differing_lines(found: Comparison) -> Iterator[str]:
    """What the runs differ in, copies and flags, what only one has, and which losses differ."""
    for line in found.differs:
        yield f"differs: {line}"
    yield from found.beware
    yield from found.alone
    for line in found.losses.apart:
        yield f"learnt something else: {line}"
    if found.losses.compared and not found.losses.apart:
        yield f"losses: equal but for rounding in all {found.losses.compared} cells that both have"


def group_lines(found: Comparison) -> Iterator[str]:
    """The groups of layers that became slower, of each cell in a line."""
    slower = found.slower_groups
    recorded = Counter(row.name for row in found.groups)
    for name in dict.fromkeys(row.name for row in slower):
        mine = [row for row in slower if row.name == name]
        every = f"all {len(mine)}: " if len(mine) == recorded[name] > 1 else ""
        words = ", ".join(_group(row, found.tolerance) for row in mine)
        yield f"layer groups slower in {name}: {every}{words}"
    for row in found.slower_steps:
        named = any(group.name == row.name for group in slower)
        if row.pair.phase == "train" and recorded[row.name] and not named:
            yield (
                f"layer groups of {row.name}: none shown to be slower, so look at waiting, "
                "communication and the optimizer"
            )


def _group(row: ComparedGroup, tolerance: float) -> str:
    shown = row.shown_by(tolerance) or row.seconds
    ratio = shown.ratio
    words = f"{row.what} {ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return words if shown is row.seconds else f"{words} beside the other layers of the same steps"


def average_lines(found: Comparison) -> Iterator[str]:
    """The rows whose averages are the other way round than their ratio, if any."""
    turned = [
        f"{row.name} {row.pair.phase}" for row in found.steps if row.turned_by_averages(found.of)
    ]
    if turned:
        yield (
            "a_s and b_s are the other way round than b_over_a, which is geometric, as single runs "
            f"are far from the others, in {', '.join(turned)}"
        )


def verdict_line(found: Comparison) -> str:
    """What decides the exit status."""
    if not found.judged:
        return f"no verdict: {'; '.join(dict.fromkeys(row.ratio.basis for row in found.steps))}"
    steps, groups = found.slower_steps, found.slower_groups
    unjudged = len(found.steps) - found.judged
    rest = f"; {unjudged} without an interval" if unjudged else ""
    of = f"{found.judged} compared, tolerance {found.tolerance:.1%}{rest}"
    if not steps and not groups:
        return f"nothing shown to be slower ({of})"
    parts = [f"{len(steps)} step times"] if steps else []
    cells = len({row.name for row in groups})
    parts += [f"layer groups of {cells} configurations"] if groups else []
    return f"SLOWER: {' and '.join(parts)} ({of})"


def write_comparison(found: Comparison, out: Path) -> None:
    """Tables of steps and groups as CSV, Markdown and LaTeX, and the lines as compare.txt."""
    lines = [*differing_lines(found), *average_lines(found), *group_lines(found)]
    lines.append(verdict_line(found))
    with atomic_output_folder(out) as folder:
        steps = compared_frame(found.steps, found.tolerance, found.of)
        groups = groups_frame(found.groups, found.tolerance, found.of)
        for name, title, frame, notes in (
            ("steps", "Seconds a step in run A and run B", steps, (_TOGETHER,)),
            ("groups", "Seconds of groups of layers a training step", groups, (_TOGETHER, _BESIDE)),
        ):
            if len(frame):
                write_table(NamedTable(f"compare_{name}", title, frame, notes), folder)
        (folder / "compare.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
