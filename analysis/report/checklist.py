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
from gnnhpc.data.commands.checksums import NAME, changed_files, read_checksums
from gnnhpc.data.settings import Data
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


def _cells_done(evidence: Evidence) -> Answer:
    cells = evidence.run.cells
    left = cells[cells["status"] != "done"]
    words = _few([f"{cell}: {status}" for cell, status in _pairs(left, "status")])
    done = f"{len(cells) - len(left)} of {len(cells)}"
    return Answer("all cells done", left.empty and len(cells) > 0, _with(done, words))


def _cells_valid(evidence: Evidence) -> Answer:
    cells = evidence.run.cells
    left = cells[~cells["valid"].astype(bool)]
    words = _few([f"{cell}: {flags or 'no result'}" for cell, flags in _pairs(left, "flags")])
    valid = f"{len(cells) - len(left)} of {len(cells)}"
    return Answer("all cells valid", left.empty and len(cells) > 0, _with(valid, words))


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
    shown = _few(faults) or f"{count} checks of {len(done)} cells"
    return Answer("records are as written, and agree", count > 0 and not faults, shown)


def _cells_validated(evidence: Evidence) -> Answer:
    """Every done cell was validated, and validation could compare it."""
    cells = evidence.run.cells
    off = cells[(cells["status"] == "done") & (cells["checks"] == 0)]
    unsure = evidence.run.checks[evidence.run.checks["verdict"] == "inconclusive"]
    words = [f"{cell}: no check" for cell in off["cell"].astype(str)]
    words += [f"{cell}: {detail}" for cell, detail in _pairs(unsure, "detail")]
    checks = sum(len(one.audit) for one in evidence.results)
    shown = _few(words) or f"{checks} checks of {len(evidence.results)} cells"
    return Answer("every cell was validated", checks > 0 and not words, shown)


def _equivalent_cells_agree(evidence: Evidence) -> Answer:
    found = evidence.run.equivalence
    wrong = [f"{cell}: {cause}" for cell, cause in found.divergences.items()]
    shown = f"{len(found.steps)} cells compared with their sequential cell"
    if not found.steps:
        shown = "no cell of this run was compared with another one"
    question = "cells that must learn the same do"
    return Answer(question, bool(found.steps) and not wrong, _few(wrong) or shown)


def _no_flags(evidence: Evidence) -> Answer:
    cells = evidence.run.cells
    counts = Counter(
        flag for flags in cells["flags"] for flag in dict.fromkeys(flags.split(";")) if flag
    )
    words = ", ".join(f"{flag} {count} of {len(cells)}" for flag, count in counts.most_common())
    return Answer("no flags", not counts, words or f"none on {len(cells)} cells")


def _repeats(evidence: Evidence) -> Answer:
    run = evidence.run
    counted = run.cells.assign(counts=run.cells["counts"].astype(bool))
    groups = counted.groupby(list(run.settings), dropna=False, sort=False)
    many = [(str(part["cell"].iloc[0]), int(part["counts"].sum())) for _, part in groups]
    short = [f"{cell}: {count}" for cell, count in many if count < evidence.repeats]
    fewest = min((count for _, count in many), default=0)
    question = f"{evidence.repeats} repeats or more of each configuration"
    shown = f"{len(many)} configurations, {fewest} or more that count"
    return Answer(question, bool(many) and not short, _few(short) or shown)


def _enough_steps(evidence: Evidence) -> Answer:
    """The steps of all repeats of each configuration and phase; fewer have no interval."""
    run = evidence.run
    counted = run.cells[run.cells["counts"].astype(bool)]
    first = counted.groupby(list(run.settings), dropna=False, sort=False)["cell"].transform("first")
    steps = run.phases.merge(counted[["cell"]].assign(first=first.astype(str)), on="cell")
    many = steps.groupby(["first", "phase"], observed=True, sort=False)["n"].sum()
    rows = many.reset_index().itertuples(index=False, name=None)
    short = [f"{name}: {n} in {phase}" for name, phase, n in rows if n < FEWEST_STEPS]
    fewest = f"{many.min()} at least" if len(many) else "none"
    question = f"{FEWEST_STEPS} steps or more after warm-up in each configuration and phase"
    return Answer(question, len(many) > 0 and not short, _few(short) or fewest)


def _nothing_replaced(evidence: Evidence) -> Answer:
    """No valid measurement was replaced by a later one, but for those that Slurm requeued."""
    attempts = evidence.run.attempts
    requeued = measured_again(attempts)
    replaced = attempts[attempts["valid"].astype(bool) & ~attempts["used"].astype(bool)]
    replaced = replaced[~replaced.index.isin(requeued.index)]
    failed = int((~attempts["valid"].astype(bool)).sum())
    words = _few([f"{cell}: attempt {number}" for cell, number in _pairs(replaced, "attempt")])
    shown = f"{len(attempts)} attempts at {len(evidence.run.cells)} cells, {failed} not valid"
    if len(requeued):
        shown += f", {len(requeued)} measured again by their job, which Slurm requeued"
    question = "no valid measurement was replaced by a later one"
    return Answer(question, replaced.empty, words or shown)


def _cells_comparable(evidence: Evidence) -> Answer:
    cells = evidence.run.cells
    apart = cells[cells["not_comparable"] != ""]
    words = _few([f"{cell}: {how}" for cell, how in _pairs(apart, "not_comparable")])
    question = "compared cells have equal code, versions, CPU, threads and kernels"
    return Answer(question, apart.empty, words or f"all {int(cells['valid'].sum())} valid ones")


def _one_code(evidence: Evidence) -> Answer:
    return _one_value(evidence, "one code", ("code",))


def _one_machine_type(evidence: Evidence) -> Answer:
    return _one_value(evidence, "one machine type", _MACHINE)


def _one_value(evidence: Evidence, question: str, names: Sequence[str]) -> Answer:
    """Each of these names has one value in all environments, or none in all of them."""
    every = list(evidence.run.environments.values())
    shown, wrong = [], []
    for name in names:
        values = {each.get(name) for each in every}
        known = sorted(value for value in values if value is not None)
        if len(values) > 1:
            wrong.append(f"{name}: {', '.join([*known, *(['not recorded'] * (None in values))])}")
        elif known:
            shown.append(f"{name} {known[0]}")
    if not shown and not wrong:
        return Answer(question, False, f"{names[0]} is not recorded")
    return Answer(question, not wrong, _few(wrong) or ", ".join(shown))


def _versions_recorded(evidence: Evidence) -> Answer:
    """Every cell has its versions, and the same."""
    every = {
        tuple(sorted((one.provenance.get("versions") or {}).items())) for one in evidence.results
    }
    question = "versions recorded, and the same in all cells"
    if not every or () in every:
        return Answer(question, False, "not in all results")
    names = dict.fromkeys(name for each in every for name, _ in each)
    apart = [
        f"{name} {', '.join(sorted(values))}"
        for name in names
        if len(values := {str(dict(each).get(name)) for each in every}) > 1
    ]
    first = ", ".join(f"{name} {version}" for name, version in sorted(every)[0])
    return Answer(question, not apart, _few(apart) or first)


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
    if len(other):
        first = f"{len(other)} cells ran other code, such as {other['cell'].iloc[0]}"
        return Answer(question, False, first)
    return Answer(question, True, f"{len(snapshot.files)} files, digest {snapshot.code}")


def _clean_commit(evidence: Evidence) -> Answer:
    commit = str((evidence.run.provenance or {}).get("commit") or "")
    question = "submitted from a clean commit"
    if not commit:
        return Answer(question, False, "no commit is recorded")
    return Answer(question, not commit.endswith("+dirty"), commit)


def _submission_recorded(evidence: Evidence) -> Answer:
    provenance = evidence.run.provenance or {}
    missing = [f"no {name}" for name in _SUBMISSION if not provenance.get(name)]
    missing += [] if evidence.paths.sweep.is_file() else [f"no {evidence.paths.sweep.name}"]
    command = provenance.get("command") or ()
    words = command if isinstance(command, str) else " ".join(map(str, command))
    return Answer("how it was submitted is recorded", not missing, _few(missing) or words)


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
        return f"{data.label}: {folder} has no digests of its files", False
    changed = changed_files(folder)
    if changed:
        return f"{data.label}: {', '.join(changed)} in {folder} differs from {NAME}", False
    return f"{data.label}: {len(files.names)} files as {NAME} says", True


def _few(items: Sequence[str], most: int = 3) -> str:
    """The first items, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return "; ".join(items[:most]) + more


def _pairs(frame: pd.DataFrame, column: str) -> Iterator[tuple[str, Any]]:
    return zip(frame["cell"].astype(str), frame[column], strict=True)


def _with(count: str, words: str) -> str:
    return f"{count}; {words}" if words else count


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
