"""Answers what a reviewer asks of a run folder, one line a question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.load.raised import DAMAGED
from analysis.load.run_data import RunData, load_run
from analysis.report.run_facts import measured_again
from analysis.statistics.intervals import FEWEST_STEPS
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.data.data_files import CHECKSUMS, changed_files, read_checksums
from gnnhpc.data.data_settings import Data
from gnnhpc.experiment.manifest import Cell, read_manifest
from gnnhpc.records.code_snapshot import check_snapshot
from gnnhpc.records.result_file import Result
from gnnhpc.validation.record_audit import audit_attempt

REPEATS = 3
_MACHINE = ("CPU model", "instructions", "GPU", "GPU driver", "CUDA", "NCCL")
_SUBMISSION = ("commit", "command", "created_at", "host", "user", "versions")


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
    """What a run folder offers: the loaded run, its manifest, its results and their audits."""

    run: RunData
    paths: RunPaths
    manifest: Sequence[Cell]
    results: Sequence[Result]
    """Results of the attempts that count and are done, without damaged ones."""
    repeats: int
    data_root: Path | None
    """Folder of the data; None for the folder of each cell."""


def check_run(root: Path, repeats: int = REPEATS, data_root: Path | None = None) -> list[Answer]:
    """One answer a question; raises InputError for a path that is no run folder."""
    if repeats < 1:
        raise InputError("--repeats", None, repeats, "1 or more")
    run, paths = load_run(root), RunPaths(root)
    used = run.cells[run.cells["status"] == "done"]
    results = [
        Result.read(paths.cell(str(cell)).attempt(int(number)).result)
        for cell, number in zip(used["cell"], used["attempt"], strict=True)
    ]
    evidence = Evidence(run, paths, read_manifest(paths.manifest), results, repeats, data_root)
    return [question(evidence) for question in QUESTIONS]


def _answer(question: str, faults: Sequence[str], fine: str, *, some: bool = True) -> Answer:
    """Not ok with any fault, or where there was nothing (not `some`) to look at."""
    return Answer(question, some and not faults, _few(faults) or fine)


def _cells_done(evidence: Evidence) -> Answer:
    cells = evidence.run.cells
    left = cells[cells["status"] != "done"]
    faults = [f"{cell}: {status}" for cell, status in _pairs(left, "status")]
    count = f"{len(cells) - len(left)} of {len(cells)}"
    return _answer("all cells done", _with(count, faults), count, some=len(cells) > 0)


def _cells_valid(evidence: Evidence) -> Answer:
    cells = evidence.run.cells
    left = cells[~cells["valid"].astype(bool)]
    faults = [f"{cell}: {flags or 'no result'}" for cell, flags in _pairs(left, "flags")]
    count = f"{len(cells) - len(left)} of {len(cells)}"
    return _answer("all cells valid", _with(count, faults), count, some=len(cells) > 0)


def _records_agree(evidence: Evidence) -> Answer:
    """Records are as they were written, and agree with each other and with the result."""
    done = evidence.run.cells[evidence.run.cells["status"] == "done"]
    faults = list(evidence.run.checks.loc[evidence.run.checks["name"] == DAMAGED, "detail"])
    count = 0
    for cell, number in _pairs(done, "attempt"):
        checks = audit_attempt(evidence.paths.cell(cell).attempt(int(number)))
        count += len(checks)
        wrong = (check for check in checks if check.verdict == "invalid")
        faults += [f"{cell}: {check.name}: {check.detail}" for check in wrong]
    fine = f"{count} checks of {len(done)} cells"
    return _answer("records are as written, and agree", faults, fine, some=count > 0)


def _cells_validated(evidence: Evidence) -> Answer:
    """Every done cell was validated, and validation could compare it."""
    cells = evidence.run.cells
    off = cells[(cells["status"] == "done") & (cells["checks"] == 0)]
    unsure = evidence.run.checks[evidence.run.checks["verdict"] == "inconclusive"]
    faults = [f"{cell}: no check" for cell in off["cell"].astype(str)]
    faults += [f"{cell}: {detail}" for cell, detail in _pairs(unsure, "detail")]
    checks = sum(len(one.audit) for one in evidence.results)
    fine = f"{checks} checks of {len(evidence.results)} cells"
    return _answer("every cell was validated", faults, fine, some=checks > 0)


def _equivalent_cells_agree(evidence: Evidence) -> Answer:
    found = evidence.run.equivalence
    faults = [f"{cell}: {cause}" for cell, cause in found.divergences.items()]
    fine = f"{len(found.steps)} cells compared with their sequential cell"
    if not found.steps:
        fine = "no cell of this run was compared with another one"
    return _answer("cells that must learn the same do", faults, fine, some=bool(found.steps))


def _no_flags(evidence: Evidence) -> Answer:
    cells = evidence.run.cells
    counts = Counter(flag for flags in cells["flags"] for flag in set(flags.split(";")) if flag)
    words = ", ".join(f"{flag} {count} of {len(cells)}" for flag, count in counts.most_common())
    return Answer("no flags", not counts, words or f"none on {len(cells)} cells")


def _repeats(evidence: Evidence) -> Answer:
    run = evidence.run
    counted = run.cells.assign(counts=run.cells["counts"].astype(bool))
    groups = counted.groupby(list(run.settings), dropna=False, sort=False)
    many = [(str(part["cell"].iloc[0]), int(part["counts"].sum())) for _, part in groups]
    faults = [f"{cell}: {count}" for cell, count in many if count < evidence.repeats]
    fewest = min((count for _, count in many), default=0)
    question = f"{evidence.repeats} repeats or more of each configuration"
    fine = f"{len(many)} configurations, {fewest} or more that count"
    return _answer(question, faults, fine, some=bool(many))


def _enough_steps(evidence: Evidence) -> Answer:
    """The steps of all repeats of each configuration and phase; fewer have no interval."""
    run = evidence.run
    counted = run.cells[run.cells["counts"].astype(bool)]
    first = counted.groupby(list(run.settings), dropna=False, sort=False)["cell"].transform("first")
    steps = run.phases.merge(counted[["cell"]].assign(first=first.astype(str)), on="cell")
    many = steps.groupby(["first", "phase"], observed=True, sort=False)["n"].sum()
    rows = many.reset_index().itertuples(index=False, name=None)
    faults = [f"{name}: {n} in {phase}" for name, phase, n in rows if n < FEWEST_STEPS]
    fine = f"{many.min()} at least" if len(many) else "none"
    question = f"{FEWEST_STEPS} steps or more after warm-up in each configuration and phase"
    return _answer(question, faults, fine, some=len(many) > 0)


def _nothing_replaced(evidence: Evidence) -> Answer:
    """No valid measurement was replaced by a later one, but for those that Slurm requeued."""
    attempts = evidence.run.attempts
    requeued = measured_again(attempts)
    valid, used = attempts["valid"].astype(bool), attempts["used"].astype(bool)
    replaced = attempts[valid & ~used & ~attempts.index.isin(requeued.index)]
    faults = [f"{cell}: attempt {number}" for cell, number in _pairs(replaced, "attempt")]
    fine = (
        f"{len(attempts)} attempts at {len(evidence.run.cells)} cells, {int((~valid).sum())} not "
        "valid"
    )
    if len(requeued):
        fine += f", {len(requeued)} measured again by their job, which Slurm requeued"
    return _answer("no valid measurement was replaced by a later one", faults, fine)


def _cells_comparable(evidence: Evidence) -> Answer:
    cells = evidence.run.cells
    other = cells[cells["not_comparable"] != ""]
    faults = [f"{cell}: {how}" for cell, how in _pairs(other, "not_comparable")]
    question = "compared cells have equal code, versions, CPU, threads and kernels"
    return _answer(question, faults, f"all {int(cells['valid'].sum())} valid ones")


def _one_code(evidence: Evidence) -> Answer:
    return _one_value(evidence, "one code", ("code",))


def _one_machine_type(evidence: Evidence) -> Answer:
    return _one_value(evidence, "one machine type", _MACHINE)


def _one_value(evidence: Evidence, question: str, names: Sequence[str]) -> Answer:
    """Each of these names has one value in all environments, or none in all of them."""
    every = list(evidence.run.environments.values())
    shown, faults = [], []
    for name in names:
        values = {each.get(name) for each in every}
        known = sorted(value for value in values if value is not None)
        if len(values) > 1:
            faults.append(f"{name}: {', '.join([*known, *(['not recorded'] * (None in values))])}")
        elif known:
            shown.append(f"{name} {known[0]}")
    fine = ", ".join(shown) or f"{names[0]} is not recorded"
    return _answer(question, faults, fine, some=bool(shown or faults))


def _versions_recorded(evidence: Evidence) -> Answer:
    """Every cell has its versions, and the same."""
    every = [dict(one.provenance.get("versions") or {}) for one in evidence.results]
    question = "versions recorded, and the same in all cells"
    if not every or {} in every:
        return Answer(question, False, "not in all results")
    names = dict.fromkeys(name for each in every for name in each)
    values = {name: sorted({str(each.get(name)) for each in every}) for name in names}
    faults = [f"{name} {', '.join(found)}" for name, found in values.items() if len(found) > 1]
    return _answer(question, faults, ", ".join(f"{name} {v[0]}" for name, v in values.items()))


def _code_kept(evidence: Evidence) -> Answer:
    question = "the code that ran is in the run folder, unchanged"
    try:
        snapshot = check_snapshot(evidence.paths)
    except InputError as error:
        return Answer(question, False, str(error))
    if snapshot is None:
        return Answer(question, False, "the run keeps no code")
    cells = evidence.run.cells
    other = cells[(cells["status"] == "done") & (cells["code_from"] != "snapshot")]
    faults = [f"{len(other)} cells ran other code, such as {cell}" for cell in other["cell"][:1]]
    return _answer(question, faults, f"{len(snapshot.files)} files, digest {snapshot.code}")


def _clean_commit(evidence: Evidence) -> Answer:
    commit = str((evidence.run.provenance or {}).get("commit") or "")
    clean = bool(commit) and not commit.endswith("+dirty")
    return Answer("submitted from a clean commit", clean, commit or "no commit is recorded")


def _submission_recorded(evidence: Evidence) -> Answer:
    provenance = evidence.run.provenance or {}
    faults = [f"no {name}" for name in _SUBMISSION if not provenance.get(name)]
    faults += [] if evidence.paths.sweep.is_file() else [f"no {evidence.paths.sweep.name}"]
    command = provenance.get("command") or ()
    fine = command if isinstance(command, str) else " ".join(map(str, command))
    return _answer("how it was submitted is recorded", faults, fine)


def _data_unchanged(evidence: Evidence) -> Answer:
    """Files have the digests that were recorded when they were downloaded."""
    distinct = {
        (cell.experiment.data.model_dump_json(), cell.data_root): cell for cell in evidence.manifest
    }
    found: dict[str, bool] = {}
    for cell in distinct.values():
        root = evidence.data_root or (Path(cell.data_root) if cell.data_root else None)
        words, ok = _data_answer(cell.experiment.data, root)
        found[words] = ok
    wrong = [words for words, ok in found.items() if not ok]
    return Answer("data are as recorded", not wrong, _few(wrong or list(found), 5))


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


def _with(count: str, faults: Sequence[str]) -> list[str]:
    """The faults with how many cells have none before the first."""
    return [f"{count}; {faults[0]}", *faults[1:]] if faults else []


QUESTIONS = (
    _cells_done,
    _cells_valid,
    _records_agree,
    _cells_validated,
    _equivalent_cells_agree,
    _no_flags,
    _repeats,
    _enough_steps,
    _nothing_replaced,
    _cells_comparable,
    _one_code,
    _code_kept,
    _clean_commit,
    _versions_recorded,
    _one_machine_type,
    _data_unchanged,
    _submission_recorded,
)
