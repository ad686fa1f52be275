"""Loads several runs as one: a sweep on two clusters, or one that went on in a second folder.

Runs that are alike in a study are joined: a cell that one of them lacks counts where the other has
it, one that both measured is one repeat more, and a copied measurement counts once. Unlike runs
are configurations of their own, by the setting `run`, with baselines of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analysis.loading.alike_runs import LikeRuns, Study, like_runs, studies_of
from analysis.loading.attempts import DAMAGED
from analysis.loading.equal_cells import compare_losses
from analysis.loading.joined_frames import join_runs
from analysis.loading.one_measurement import measurement_digest, records_of
from analysis.loading.run import Run, load
from gnnhpc.core.errors import InputError

RUN = "run"
"""Setting of cells whose run is unlike another one of the report."""
FOLDER = "folder"
"""Column of cells: the run folder that each is from."""


def load_runs(roots: Sequence[Path], *, apart: bool = False) -> Run:
    """Load one run folder, or several as one run.

    Raises InputError as `load` does, and for a folder that is given twice.
    """
    runs = [load(root, apart=apart) for root in roots]
    if len(runs) == 1:
        return runs[0]
    places = [root.resolve() for root in roots]
    for number, place in enumerate(places):
        if place in places[:number]:
            raise InputError(roots[number], None, "the same folder twice", "different runs")
    names = _names(places)
    plan = _plan(runs, names, like_runs(runs))
    labelled = [
        run.cells.assign(**{RUN: plan.labels[number], FOLDER: names[number]})
        for number, run in enumerate(runs)
    ]
    lines = (
        f"Several runs in one report: {_sizes(names, plan)}.",
        *plan.lines,
        *_loss_lines(runs, names),
    )
    joined = join_runs(runs, labelled, plan.ids, tuple(names), lines)
    if any(label for labels in plan.labels for label in labels):
        return joined.with_settings(*joined.settings, RUN)
    return joined


def _names(places: Sequence[Path]) -> list[str]:
    """The folders' own names, with as many of the folders above as tell them apart."""
    for depth in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-depth:]) for place in places]
        if len(set(names)) == len(names):
            return names
    return [str(place) for place in places]


@dataclass
class _Plan:
    """Of each run: the new ids of the cells that are kept, by old id; and each cell's label."""

    ids: list[dict[str, str]] = field(default_factory=list)
    labels: list[list[str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Place:
    """A cell in one of the runs."""

    number: int
    cell: str
    status: str
    valid: bool
    records: Path | None

    @property
    def measured(self) -> bool:
        """Whether it says something of its own: numbers, or why they are none."""
        return self.status in ("done", DAMAGED)


def _plan(runs: Sequence[Run], names: Sequence[str], alike: dict[Study, LikeRuns]) -> _Plan:
    plan = _Plan([{} for _ in runs], [], list(_apart_lines(names, alike)))
    held: dict[tuple[str, tuple[int, ...]], list[_Place]] = {}
    for number, run in enumerate(runs):
        labels = []
        for study, place in zip(studies_of(run), _places(number, run), strict=True):
            group = alike[study].group_of(number)
            labels.append(_label(group, names) if len(alike[study].groups) > 1 else "")
            held.setdefault((place.cell, tuple(group)), []).append(place)
        plan.labels.append(labels)
    elsewhere = copies = again = 0
    taken: set[str] = set()
    for places in held.values():
        kept = _that_say_something(places)
        elsewhere += len(places) - len(kept)
        distinct = _without_copies(kept)
        copies += len(kept) - len(distinct)
        again += max(0, sum(place.valid for place in distinct) - 1)
        for place in distinct:
            new = place.cell if place.cell not in taken else f"{place.cell}@{names[place.number]}"
            taken.add(new)
            plan.ids[place.number][place.cell] = new
    plan.lines += [
        line
        for count, line in (
            (elsewhere, f"{elsewhere} cells were not measured in one run and are in another."),
            (again, f"{again} cells were measured in two runs that are alike: more repeats."),
            (copies, f"{copies} measurements are copies of one in another run: counted once."),
        )
        if count
    ]
    return plan


def _places(number: int, run: Run) -> Iterator[_Place]:
    for row in run.cells.to_dict("records"):
        cell = str(row["cell"])
        records = records_of(run.root, cell, row["attempt"])
        yield _Place(number, cell, row["status"], bool(row["valid"]), records)


def _that_say_something(places: Sequence[_Place]) -> list[_Place]:
    """Those that were measured, where one is valid; of those that all say nothing the first."""
    if any(place.valid for place in places):
        return [place for place in places if place.measured]
    silent = [place for place in places if place.status in ("missing", "unfinished")]
    return [place for place in places if place not in silent] or list(places[:1])


def _without_copies(places: Sequence[_Place]) -> list[_Place]:
    """One of each measurement; the records' digest tells one that was copied."""
    if len(places) < 2:
        return list(places)
    found: dict[str, _Place] = {}
    for place in places:
        digest = measurement_digest(place.records)
        found.setdefault(digest or f"nothing in run {place.number}", place)
    return list(found.values())


def _label(group: Sequence[int], names: Sequence[str]) -> str:
    return " + ".join(names[i] for i in group)


def _apart_lines(names: Sequence[str], alike: dict[Study, LikeRuns]) -> Iterator[str]:
    """Which runs are rows of their own, and why; once for studies that say the same."""
    lines: dict[str, None] = {}
    for found in alike.values():
        first = _label(found.groups[0], names)
        for group, why in zip(found.groups[1:], found.unlike, strict=True):
            lines[f"Rows are apart by run, {first} from {_label(group, names)}: {why}."] = None
    yield from lines


def _loss_lines(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    """Whether cells that two runs both have learnt the same; each run is judged by itself."""
    for a, b in itertools.combinations(range(len(runs)), 2):
        found = compare_losses(runs[a], runs[b])
        both = f"{found.compared} cells that {names[a]} and {names[b]} both measured"
        if found.apart:
            first = f"such as {found.apart[0]}"
            yield f"{len(found.apart)} of {both} learnt something else, {first}."
        elif found.compared:
            yield f"Losses are equal but for rounding in all {both}."


def _sizes(names: Sequence[str], plan: _Plan) -> str:
    return ", ".join(
        f"{name} ({len(ids)} cells)" for name, ids in zip(names, plan.ids, strict=True)
    )
