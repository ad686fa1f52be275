"""What a run folder says of its submission: provenance.json, and the lines of submissions.jsonl."""

from __future__ import annotations

from typing import Any

from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import check_version, read_object, read_object_lines

PROVENANCE_VERSION = 1
SUBMISSIONS_VERSION = 1


def read_provenance(paths: RunPaths) -> dict[str, Any] | None:
    """The content of provenance.json, None without the file; InputError for anything else."""
    try:
        facts = read_object(paths.provenance, "what the run was submitted with, as written")
    except FileNotFoundError:
        return None
    check_version(facts, PROVENANCE_VERSION, paths.provenance)
    return facts


def read_submission_lines(paths: RunPaths) -> list[tuple[str, dict[str, Any]]]:
    """Each line of submissions.jsonl and its place, oldest first; none without the file.

    Raises InputError naming the damaged line.
    """
    try:
        lines = read_object_lines(paths.submissions, "one submission a line, as written")
    except FileNotFoundError:
        return []
    for where, raw in lines:
        check_version(raw, SUBMISSIONS_VERSION, where)
    return lines
