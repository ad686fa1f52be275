"""Answers what a reviewer asks of a run folder, one line a question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.load.read_cell_flags import DAMAGED, EQUIVALENT, count_flags
from analysis.load.run_data import RunData, load_run
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.data.data_files import CHECKSUMS, changed_files, read_checksums
from gnnhpc.data.data_settings import Data
from gnnhpc.records.code_snapshot import check_snapshot
from gnnhpc.validation.record_audit import audit_attempt

_MOST_FAULTS = 3
"""How many faults a line has; it counts the others."""


@dataclass(frozen=True)
class Answer:
    """A question is ok where there is no fault."""

    question: str
    faults: Sequence[str]
    fine: str
    """What is said without any fault."""

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def line(self) -> str:
        left = len(self.faults) - _MOST_FAULTS
        words = "; ".join(self.faults[:_MOST_FAULTS]) or self.fine
        more = f" and {left} more" if left > 0 else ""
        return f"{'ok' if self.ok else 'NOT OK':<7} {self.question}: {words}{more}"


def check_run(root: Path, repeats: int = 3) -> Iterator[Answer]:
    """One answer a question; raises InputError for a path that is no run folder."""
    if repeats < 1:
        raise InputError("--repeats", None, repeats, "1 or more")
    run, paths = load_run(root), RunPaths(root)
    cells, checks = run.cells, run.checks
    done = cells[cells["status"] == "done"]
    every, of_done = f"{len(cells)} cells", f"{len(done)} cells"

    yield Answer("all cells done", _named(cells[cells["status"] != "done"], "status"), every)
    invalid = cells[~cells["valid"].astype(bool)]
    yield Answer("all cells valid", _named(invalid, "flags"), every)
    damaged = list(checks.loc[checks["name"] == DAMAGED, "detail"])
    yield Answer("records are as written, and agree", damaged + _audited(paths, done), of_done)
    unchecked, unsure = done[done["checks"] == 0], checks[checks["verdict"] == "inconclusive"]
    faults = _named(unchecked, "status") + _named(unsure, "detail")
    yield Answer("every cell was validated, and could be compared", faults, of_done)
    compared = cells["compared_steps"].count()
    left = checks[(checks["name"] == EQUIVALENT) & (checks["verdict"] == "invalid")]
    faults = _named(left, "detail") + ([] if compared else ["no cells were compared"])
    yield Answer("cells that must learn the same do", faults, f"{compared} cells compared")
    yield Answer("no flags", count_flags(cells["flags"]), every)
    counted = cells.assign(counts=cells["counts"].astype(int))
    groups = counted.groupby(list(run.settings), dropna=False, sort=False)
    many = groups.agg(cell=("cell", "first"), counts=("counts", "sum"))
    few = _named(many[many["counts"] < repeats], "counts")
    yield Answer(f"{repeats} repeats or more of each configuration", few, every)
    other = cells[cells["not_comparable"] != ""]
    question = "compared cells have equal code, versions, CPU, threads and kernels"
    yield Answer(question, _named(other, "not_comparable"), every)
    yield _code_kept(paths, done)
    commit = run.provenance.get("commit") or "no commit is recorded"
    dirty = commit.endswith("+dirty") or " " in commit
    yield Answer("submitted from a clean commit", [commit] if dirty else [], commit)
    yield _data_unchanged(run)


def _named(frame: pd.DataFrame, column: str) -> list[str]:
    """Each cell with its value in the column."""
    return [f"{cell}: {v}" for cell, v in zip(frame["cell"], frame[column], strict=True)]


def _audited(paths: RunPaths, done: pd.DataFrame) -> list[str]:
    """What the audit of all records finds again."""
    return [
        f"{cell}: {check.name}: {check.detail}"
        for cell, number in zip(done["cell"], done["attempt"], strict=True)
        for check in audit_attempt(paths.cell(str(cell)).attempt(int(number)))
        if check.verdict == "invalid"
    ]


def _code_kept(paths: RunPaths, done: pd.DataFrame) -> Answer:
    question = "the code that ran is in the run folder, unchanged"
    try:
        snapshot = check_snapshot(paths)
    except InputError as error:
        return Answer(question, [str(error)], "")
    if snapshot is None:
        return Answer(question, ["the run keeps no code"], "")
    faults = _named(done[done["code_from"] != "snapshot"], "code_from")
    return Answer(question, faults, f"{len(snapshot.files)} files, digest {snapshot.code}")


def _data_unchanged(run: RunData) -> Answer:
    """Files have the digests that were recorded when they were downloaded."""
    plans = [one.plan for one in run.stored.values()]
    distinct = {(plan.experiment.data.label, plan.data_root): plan for plan in plans}
    faults = {
        _why_not_known(plan.experiment.data, Path(plan.data_root) if plan.data_root else None)
        for plan in distinct.values()
    }
    names = sorted({label for label, _ in distinct})
    return Answer("data are as recorded", sorted(faults - {""}), ", ".join(names))


def _why_not_known(data: Data, root: Path | None) -> str:
    """Why it is not known that the data are unchanged; empty where it is known."""
    files = data.files()
    if files is None:
        # Made from its settings, or with a digest that is part of the cell's id.
        return ""
    folder = files.directory(root) if root else None
    if root is None or folder is None or files.missing(root):
        return f"{data.label} is not in {root or 'a data root'}"
    if not read_checksums(folder).keys() >= set(files.names):
        how = f"`gnnhpc data check {data.name}` writes them"
        return f"{data.label}: {folder} has no digests of its files; {how}"
    changed = ", ".join(changed_files(folder))
    return f"{data.label}: {changed} in {folder} differs from {CHECKSUMS}" if changed else ""
