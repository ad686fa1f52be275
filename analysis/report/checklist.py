"""Answers what a reviewer asks of a run folder, one line a question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.flags import DAMAGED, EQUIVALENT, count_flags
from analysis.load.run_data import RunData, load_run
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.data.data_files import CHECKSUMS, changed_files, read_checksums
from gnnhpc.data.data_settings import Data
from gnnhpc.records.code_snapshot import check_snapshot
from gnnhpc.validation.record_audit import audit_attempt

REPEATS = 3
_MACHINE = ("CPU model", "instructions", "GPU", "GPU driver", "CUDA", "NCCL")
_SUBMISSION = ("command", "created_at", "host", "user", "versions")


@dataclass(frozen=True)
class Answer:
    question: str
    ok: bool
    detail: str

    @property
    def line(self) -> str:
        return f"{'ok' if self.ok else 'NOT OK':<7} {self.question}: {self.detail}"


@dataclass(frozen=True)
class Evidence:
    """What a run folder offers, and what is asked of it."""

    run: RunData
    paths: RunPaths
    repeats: int
    data_root: Path | None
    """Folder of the data; None for the folder of each cell."""

    @property
    def cells(self) -> pd.DataFrame:
        return self.run.cells

    @property
    def done(self) -> pd.DataFrame:
        return self.cells[self.cells["status"] == "done"]


Found = tuple[list[str], str]
"""Faults, and what is said without any; a question is not ok with a fault, or with neither."""


def check_run(root: Path, repeats: int = REPEATS, data_root: Path | None = None) -> list[Answer]:
    """One answer a question; raises InputError for a path that is no run folder."""
    if repeats < 1:
        raise InputError("--repeats", None, repeats, "1 or more")
    evidence = Evidence(load_run(root), RunPaths(root), repeats, data_root)
    answers = []
    for question, answer in QUESTIONS.items():
        faults, fine = answer(evidence)
        words = _few(faults) or fine or "nothing to look at"
        answers.append(Answer(question.format(repeats=repeats), bool(fine) and not faults, words))
    return answers


def _cells_done(evidence: Evidence) -> Found:
    left = evidence.cells[evidence.cells["status"] != "done"]
    return _all_but(evidence, [f"{cell}: {status}" for cell, status in _pairs(left, "status")])


def _cells_valid(evidence: Evidence) -> Found:
    left = evidence.cells[~evidence.cells["valid"].astype(bool)]
    faults = [f"{cell}: {flags or 'no result'}" for cell, flags in _pairs(left, "flags")]
    return _all_but(evidence, faults)


def _all_but(evidence: Evidence, faults: list[str]) -> Found:
    """How many cells have no fault, before the first fault."""
    total = len(evidence.cells)
    count = f"{total - len(faults)} of {total}"
    return [f"{count}; {faults[0]}", *faults[1:]] if faults else [], count if total else ""


def _records_agree(evidence: Evidence) -> Found:
    """Records are as they were written, and agree with each other and with the result."""
    checks = evidence.run.checks
    faults, count = list(checks.loc[checks["name"] == DAMAGED, "detail"]), 0
    for cell, number in _pairs(evidence.done, "attempt"):
        for check in audit_attempt(evidence.paths.cell(cell).attempt(int(number))):
            count += 1
            if check.verdict == "invalid":
                faults.append(f"{cell}: {check.name}: {check.detail}")
    return faults, f"{count} checks of {len(evidence.done)} cells" if count else ""


def _cells_validated(evidence: Evidence) -> Found:
    """Every done cell was validated, and validation could compare it."""
    off = evidence.done[evidence.done["checks"] == 0]
    unsure = evidence.run.checks[evidence.run.checks["verdict"] == "inconclusive"]
    faults = [f"{cell}: no check" for cell in off["cell"].astype(str)]
    faults += [f"{cell}: {detail}" for cell, detail in _pairs(unsure, "detail")]
    checks = evidence.done["checks"].sum()
    return faults, f"{checks} checks of {len(evidence.done)} cells" if checks else ""


def _equivalent_cells_agree(evidence: Evidence) -> Found:
    checks = evidence.run.checks
    left = checks[(checks["name"] == EQUIVALENT) & (checks["verdict"] == "invalid")]
    faults = [f"{cell}: {cause}" for cell, cause in _pairs(left, "detail")]
    compared = evidence.cells["compared_steps"].count()
    if not compared:
        return [*faults, "no cell of this run was compared with another one"], ""
    return faults, f"{compared} cells compared with their sequential cell"


def _no_flags(evidence: Evidence) -> Found:
    flags = count_flags(evidence.cells["flags"])
    return [", ".join(flags)] if flags else [], f"none on {len(evidence.cells)} cells"


def _repeats(evidence: Evidence) -> Found:
    keys = list(evidence.run.settings)
    counted = evidence.cells.assign(counts=evidence.cells["counts"].astype(int))
    groups = counted.groupby(keys, dropna=False, sort=False)
    many = groups.agg(cell=("cell", "first"), counts=("counts", "sum"))
    few = many[many["counts"] < evidence.repeats]
    fine = f"{len(many)} configurations, {many['counts'].min()} or more that count"
    return [f"{cell}: {n}" for cell, n in _pairs(few, "counts")], fine if len(many) else ""


def _cells_comparable(evidence: Evidence) -> Found:
    other = evidence.cells[evidence.cells["not_comparable"] != ""]
    faults = [f"{cell}: {how}" for cell, how in _pairs(other, "not_comparable")]
    return faults, f"all {int(evidence.cells['valid'].sum())} valid ones"


def _one_machine(evidence: Evidence) -> Found:
    """Each part of a machine is the same in all environments."""
    every = list(evidence.run.environments.values())
    values = {name: {one.get(name, "not recorded") for one in every} for name in _MACHINE}
    faults = [f"{name}: {', '.join(sorted(v))}" for name, v in values.items() if len(v) > 1]
    known = [f"{name} {min(v)}" for name, v in values.items() if v - {"not recorded"}]
    return faults, ", ".join(known)


def _code_kept(evidence: Evidence) -> Found:
    try:
        snapshot = check_snapshot(evidence.paths)
    except InputError as error:
        return [str(error)], ""
    if snapshot is None:
        return ["the run keeps no code"], ""
    other = evidence.done[evidence.done["code_from"] != "snapshot"]
    faults = [f"{len(other)} cells ran other code, such as {cell}" for cell in other["cell"][:1]]
    return faults, f"{len(snapshot.files)} files, digest {snapshot.code}"


def _clean_commit(evidence: Evidence) -> Found:
    commit = str((evidence.run.provenance or {}).get("commit") or "")
    dirty = not commit or commit.endswith("+dirty")
    return [commit or "no commit is recorded"] if dirty else [], commit


def _submission_recorded(evidence: Evidence) -> Found:
    provenance, sweep = evidence.run.provenance or {}, evidence.paths.sweep
    faults = [f"no {name}" for name in _SUBMISSION if not provenance.get(name)]
    faults += [] if sweep.is_file() else [f"no {sweep.name}"]
    command = provenance.get("command") or ()
    return faults, command if isinstance(command, str) else " ".join(map(str, command))


def _data_unchanged(evidence: Evidence) -> Found:
    """Files have the digests that were recorded when they were downloaded."""
    distinct = {
        (one.plan.experiment.data.model_dump_json(), one.plan.data_root): one.plan
        for one in evidence.run.stored.values()
    }
    found: dict[str, bool] = {}
    for cell in distinct.values():
        root = evidence.data_root or (Path(cell.data_root) if cell.data_root else None)
        words, ok = _data_answer(cell.experiment.data, root)
        found[words] = ok
    return [words for words, ok in found.items() if not ok], _few(list(found), 5)


def _data_answer(data: Data, root: Path | None) -> tuple[str, bool]:
    """The finding in words, and whether the data are known to be unchanged."""
    files = data.files(root)
    if files is None:
        digest = getattr(data, "digest", None)
        if digest:
            # The digest is part of the cell's id, and every rank checks the file.
            return f"{data.label} has the SHA-256 {digest[:12]} of its cells", True
        return f"{data.label} is made from its settings", True
    folder = files.directory(root) if root else None
    if root is None or folder is None or files.missing(root):
        return f"{data.label} is not in {root or 'a data root'}: --data-root", False
    if not read_checksums(folder).keys() >= set(files.names):
        how = f"`gnnhpc data record {data.name}` writes them"
        return f"{data.label}: {folder} has no digests of its files; {how}", False
    changed = changed_files(folder)
    if changed:
        return f"{data.label}: {', '.join(changed)} in {folder} differs from {CHECKSUMS}", False
    return f"{data.label}: {len(files.names)} files as {CHECKSUMS} says", True


def _few(items: Sequence[str], most: int = 3) -> str:
    """The first items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def _pairs(frame: pd.DataFrame, column: str) -> Iterator[tuple[str, Any]]:
    return zip(frame["cell"].astype(str), frame[column], strict=True)


QUESTIONS: dict[str, Callable[[Evidence], Found]] = {
    "all cells done": _cells_done,
    "all cells valid": _cells_valid,
    "records are as written, and agree": _records_agree,
    "every cell was validated": _cells_validated,
    "cells that must learn the same do": _equivalent_cells_agree,
    "no flags": _no_flags,
    "{repeats} repeats or more of each configuration": _repeats,
    "compared cells have equal code, versions, CPU, threads and kernels": _cells_comparable,
    "the code that ran is in the run folder, unchanged": _code_kept,
    "submitted from a clean commit": _clean_commit,
    "one machine type": _one_machine,
    "data are as recorded": _data_unchanged,
    "how it was submitted is recorded": _submission_recorded,
}
