"""Answers every question that is asked of a run for an artifact evaluation."""

from __future__ import annotations

from pathlib import Path

from analysis.artifact import of_cells, of_origin
from analysis.artifact.evidence import Finding, read_evidence
from gnnhpc.core.errors import InputError

REPEATS = 3
QUESTIONS = (
    of_cells.cells_done,
    of_cells.cells_valid,
    of_cells.records_whole,
    of_cells.self_checks,
    of_cells.siblings_agree,
    of_cells.no_flags,
    of_cells.repeats,
    of_cells.enough_steps,
    of_cells.no_second_choice,
    of_cells.cells_alike,
    of_origin.one_code,
    of_origin.code_kept,
    of_origin.clean_tree,
    of_origin.versions_recorded,
    of_origin.one_machine_type,
    of_origin.data_unchanged,
    of_origin.submission_recorded,
)


def check_run(root: Path, repeats: int = REPEATS, data_root: Path | None = None) -> list[Finding]:
    """One finding a question; InputError for a path that is no run folder."""
    if repeats < 1:
        raise InputError("--repeats", None, repeats, "1 or more")
    evidence = read_evidence(root, repeats, data_root)
    return [question(evidence) for question in QUESTIONS]
