"""Questions about where a run comes from: code, versions, machines, data, submission."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from analysis.artifact.evidence import Evidence, Finding, few
from gnnhpc.core.errors import InputError
from gnnhpc.data.commands.checksums import NAME, changed_files, read_checksums
from gnnhpc.data.settings import Data
from gnnhpc.records.code_snapshot import check_snapshot

MACHINE_FACTS = ("CPU model", "instructions", "GPU", "GPU driver", "CUDA", "NCCL")
_ASKED = ("commit", "command", "created_at", "host", "user", "versions")


def one_code(evidence: Evidence) -> Finding:
    return _one_value(evidence, "one code", ("code",))


def one_machine_type(evidence: Evidence) -> Finding:
    return _one_value(evidence, "one machine type", MACHINE_FACTS)


def _one_value(evidence: Evidence, question: str, names: Sequence[str]) -> Finding:
    """Each of these facts has one value in all cells; one that no cell has is not there."""
    facts = list(evidence.run.facts.values())
    shown, wrong = [], []
    for name in names:
        values = {each.get(name) for each in facts}
        known = sorted(value for value in values if value is not None)
        if known and None in values:
            wrong.append(f"{name}: not recorded in all cells")
        if len(known) > 1:
            wrong.append(f"{name}: {', '.join(known)}")
        shown += [f"{name} {known[0]}"] if len(known) == 1 else []
    if not shown and not wrong:
        return Finding(question, False, f"{names[0]} is not recorded")
    return Finding(question, not wrong, few(wrong) or ", ".join(shown))


def versions_recorded(evidence: Evidence) -> Finding:
    """Of every cell, and the same in all."""
    found = {
        tuple(sorted((one.provenance.get("versions") or {}).items())) for one in evidence.results
    }
    question = "versions recorded, and the same in all cells"
    if not found or () in found:
        return Finding(question, False, "not in all results")
    names = dict.fromkeys(name for each in found for name, _ in each)
    unlike = [
        f"{name} {', '.join(sorted(values))}"
        for name in names
        if len(values := {str(dict(each).get(name)) for each in found}) > 1
    ]
    first = ", ".join(f"{name} {version}" for name, version in sorted(found)[0])
    return Finding(question, not unlike, few(unlike) or first)


def clean_tree(evidence: Evidence) -> Finding:
    """Submitted from a commit without edits."""
    commit = str((evidence.run.provenance or {}).get("commit") or "")
    question = "submitted from a clean commit"
    if not commit:
        return Finding(question, False, "no commit is recorded")
    return Finding(question, not commit.endswith("+dirty"), commit)


def code_kept(evidence: Evidence) -> Finding:
    """The run folder holds the code, unchanged, and the cells ran it."""
    question = "the code that ran is in the run folder, unchanged"
    try:
        snapshot = check_snapshot(evidence.paths)
    except InputError as error:
        return Finding(question, False, str(error))
    if snapshot is None:
        return Finding(question, False, "the run keeps no code")
    cells = evidence.run.cells
    other = cells[(cells["status"] == "done") & (cells["code_from"] != "snapshot")]
    if len(other):
        first = f"{len(other)} cells ran other code, such as {other['cell'].iloc[0]}"
        return Finding(question, False, first)
    return Finding(question, True, f"{len(snapshot.files)} files, digest {snapshot.code}")


def submission_recorded(evidence: Evidence) -> Finding:
    facts = evidence.run.provenance or {}
    missing = [f"no {name}" for name in _ASKED if not facts.get(name)]
    missing += [] if evidence.paths.sweep.is_file() else [f"no {evidence.paths.sweep.name}"]
    command = facts.get("command") or ()
    words = command if isinstance(command, str) else " ".join(map(str, command))
    return Finding("how it was submitted is recorded", not missing, few(missing) or words)


def data_unchanged(evidence: Evidence) -> Finding:
    """Files against the digests that were recorded when they were downloaded."""
    asked = {
        (cell.experiment.data.model_dump_json(), cell.data_root): cell for cell in evidence.manifest
    }
    found: dict[str, bool] = {}
    for cell in asked.values():
        root = evidence.data_root or (Path(cell.data_root) if cell.data_root else None)
        words, ok = _data_answer(cell.experiment.data, root)
        found[words] = ok
    wrong = [words for words, ok in found.items() if not ok]
    return Finding("data are as recorded", not wrong, few(wrong or list(found), 5))


def _data_answer(data: Data, root: Path | None) -> tuple[str, bool]:
    """In words, and whether these data are known to be what they were."""
    files = data.files(root)
    if files is None:
        digest = getattr(data, "digest", None)
        if digest:
            # The digest is part of the cell's id, and every rank holds the file against it.
            return f"{data.label} has the SHA-256 {digest[:12]} of its cells", True
        return f"{data.label} is made from its settings", True
    folder = files.directory(root) if root else None
    if root is None or folder is None or files.missing(root):
        return f"{data.label} is not in {root or 'a data root'}: --data-root", False
    if not read_checksums(folder).keys() >= set(files.names):
        return f"{data.label}: no digests beside its files in {folder}", False
    changed = changed_files(folder)
    if changed:
        return f"{data.label}: {', '.join(changed)} in {folder} differs from {NAME}", False
    return f"{data.label}: {len(files.names)} files as {NAME} says", True
