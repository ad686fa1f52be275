"""Selects cells of a run and submits them again, each as a new attempt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.errors import InputError, print_note
from gnnhpc.core.provenance import ROOT, code_digest, read_provenance
from gnnhpc.core.settings import build_strictly
from gnnhpc.records.code_snapshot import check_snapshot
from jobs.run.cell_state import FAILED, LIVE, UNFINISHED, CellState
from jobs.run.run_state import RunState, open_run, read_run
from jobs.run.status import status
from jobs.run.submission_records import run_lock
from jobs.slurm.batch_script import Launch
from jobs.slurm.job_array import format_indices, parse_indices
from jobs.slurm.paired_blocks import blocks_with
from jobs.slurm.site_settings import Site
from jobs.submit.submission import Options, Submission, make_launch, make_submission
from jobs.submit.submit import SCHEDULERS, Submitted, jobs_of_after, wait_if_asked


@dataclass(frozen=True)
class Selection:
    """Which cells run again: those that failed, are missing or flagged, or by array and index."""

    array: str | None = None
    index: str | None = None
    """Indices of the array, such as 3,5-7."""
    failed: bool = False
    missing: bool = False
    flagged: bool = False
    force: bool = False
    """Whether cells whose state Slurm does not say may run again, perhaps twice."""


def rerun(
    run: str | Path,
    selection: Selection,
    options: Options | None = None,
) -> Submitted:
    """Submit the selected cells of a run again.

    They run the code that the run keeps, where and with the site that it was submitted with, unless
    `options` say otherwise; `paired` runs the whole blocks that hold the cells. Raises InputError
    if nothing is selected, and for a cell named by array or index that runs, waits or, without
    `force`, may do so.
    """
    paths, options = open_run(run), options or Options()
    with run_lock(paths):
        submission = prepare_rerun(run, selection, options)
        jobs = SCHEDULERS[submission.cluster].submit(submission, paths)
    return wait_if_asked(submission, jobs, options)


def prepare_rerun(run: str | Path, selection: Selection, options: Options) -> Submission:
    """What `rerun` submits; nothing is written. Raises as `rerun`."""
    state = read_run(run)
    cluster = options.cluster or state.cluster
    scheduler, launch = SCHEDULERS[cluster], _launch(state, options)
    waits = jobs_of_after(options)
    waits += scheduler.query(state) if launch.site.max_parallel else []
    current = status(state)
    chosen = {cell.cell for cell in select_cells(current.cells, selection)}
    if not chosen:
        details = [f"; {cell.detail}" for cell in current.cells if cell.state == "unknown"]
        found = f"no cell to run again ({current.line}{''.join(details[:1])})"
        allowed = "a run with such cells, or --force for unknown ones, which may then run twice"
        raise InputError(str(run), None, found, allowed)
    cells = [cell for cell in state.cells if cell.id in chosen]
    blocks = blocks_with(state.blocks, cells) if options.paired else {}
    submission = make_submission(state.paths.root, cells, blocks, launch, cluster, waits)
    scheduler.check(submission, options)
    whole = {cell.id for cell in submission.cells}
    _check_idle([cell for cell in current.cells if cell.cell in whole], selection)
    return submission


def _launch(state: RunState, options: Options) -> Launch:
    """How the run was first submitted, except for the options; a note says which code runs.

    The interpreter is this one where that one is missing. Raises InputError for a damaged
    provenance.json, or none, and if the code that the run keeps has changed.
    """
    paths = state.paths
    metadata = read_provenance(paths) or {}
    settings, python = metadata.get("site"), metadata.get("python")
    if not isinstance(settings, dict) or not isinstance(python, str):
        raise InputError(paths.provenance, None, "no site or python", "what the run was made with")
    name = str(settings.pop("name", "built-in"))
    site = build_strictly(Site, settings, paths.provenance, "site")
    interpreter = python if Path(python).is_file() else sys.executable
    submitted = Launch(name, site, interpreter, live=not paths.code_record.exists())
    launch = make_launch(submitted, options)
    snapshot = None if launch.live else check_snapshot(paths)
    if launch.live:
        print_note(f"runs the code in {ROOT} as it is when each cell starts")
    elif snapshot is not None and snapshot.code != code_digest():
        print_note(f"runs the code that the run keeps; --live would run the code in {ROOT}")
    return launch


def select_cells(cells: Sequence[CellState], selection: Selection) -> list[CellState]:
    """The selected cells; of those selected by state, unknown ones only with `force`.

    Raises InputError for unknown arrays or indices, and options that exclude each other.
    """
    array, arrays = selection.array, sorted({cell.array for cell in cells})
    by_state = selection.failed or selection.missing or selection.flagged
    if array is None and selection.index is None and not by_state:
        allowed = "--index with --array, --array alone, --failed, --missing or --flagged"
        raise InputError("rerun", None, "no cell selected", allowed)
    if array is not None and array not in arrays:
        raise InputError("--array", None, repr(array), ", ".join(arrays))
    pool = [cell for cell in cells if array is None or cell.array == array]
    if selection.index is not None:
        if by_state:
            raise InputError("--index", None, "a state beside it", "one of the two")
        if array is None and len(arrays) > 1:
            raise InputError("--index", None, "no --array", f"--array with {', '.join(arrays)}")
        have, indices = {cell.index for cell in pool}, parse_indices(selection.index)
        if absent := [number for number in indices if number not in have]:
            raise InputError("--index", None, absent[0], format_indices(have))
        pool = [cell for cell in pool if cell.index in set(indices)]
    if not by_state:
        return pool
    states = (FAILED if selection.failed else ()) + (UNFINISHED if selection.missing else ())
    states += ("unknown",) if states and selection.force else ()
    return [
        cell
        for cell in pool
        if cell.state in states
        or (selection.flagged and cell.flags and cell.state in ("done", "invalid"))
    ]


def _check_idle(cells: Sequence[CellState], selection: Selection) -> None:
    """Raises InputError for cells that run or wait, and without `force` for unknown ones."""
    for cell in cells:
        found = f"{cell.array} {cell.index}, which is {cell.state}"
        if cell.state in LIVE:
            allowed = "cells that neither run nor wait: wait, or cancel first"
            raise InputError("rerun", None, found, allowed)
        if cell.state == "unknown" and not selection.force:
            found = f"{found}: {cell.detail}"
            raise InputError("rerun", None, found, "--force, which may run it twice")
