"""Selects cells of a run and submits them again, each as a new attempt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.errors import InputError, print_note
from gnnhpc.core.provenance import code_digest
from gnnhpc.core.python_path import ROOT
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.code_snapshot import check_snapshot
from gnnhpc.records.submissions import read_provenance
from jobs.run.cell_state import FAILED, LIVE, UNFINISHED, CellState
from jobs.run.run_state import RunState, open_run, read_run
from jobs.run.status import RunStatus, status_of
from jobs.run.submission_records import run_lock
from jobs.slurm.job_array import format_indices, parse_indices
from jobs.slurm.launch import Launch, differing_settings
from jobs.slurm.site import parse_site
from jobs.submission.clusters import SCHEDULERS
from jobs.submission.scheduler import Watch
from jobs.submission.submission import Options, Submission, make_launch, make_submission
from jobs.submission.submit import (
    Submitted,
    jobs_of_after,
    submit_arrays,
    wait_for,
)

SELECTIONS = "--index with --array, --array alone, --failed, --missing or --flagged"


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
    *,
    watch: Watch | None = None,
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
        submitted = submit_arrays(submission, paths, options)
    return wait_for(submitted, watch) if options.wait else submitted


def prepare_rerun(run: str | Path, selection: Selection, options: Options) -> Submission:
    """What `rerun` submits; nothing is written. Raises as `rerun`."""
    state = read_run(run)
    cluster = options.cluster or state.cluster
    scheduler = SCHEDULERS[cluster]
    scheduler.check_here(state.paths.root, [])
    launch = _launch(state, options)
    scheduler.check_options(options)
    waits = jobs_of_after(options)
    waits += scheduler.query(state) if launch.site.max_parallel else []
    current = status_of(state, fresh=True)
    chosen = {cell.cell for cell in select_cells(current.cells, selection)}
    may_run = [cell for cell in current.cells if cell.state == "unknown" and not selection.force]
    if not chosen:
        raise _nothing_to_run(run, current, may_run)
    cells = [cell for cell in state.cells if cell.id in chosen]
    blocks = state.blocks.with_cells(cells) if options.paired else {}
    submission = make_submission(state.paths.root, cells, blocks, launch, cluster, waits)
    scheduler.check(submission)
    if options.paired:
        whole = {cell.id for cell in submission.cells}
        _check_idle([cell for cell in current.cells if cell.cell in whole], selection)
    for note in scheduler.notes(submission):
        print_note(note)
    if may_run:
        print_note(f"leaves {len(may_run)} unknown cells alone: {may_run[0].detail}")
    return submission


def _launch(state: RunState, options: Options) -> Launch:
    """The launch of the rerun, with a note for what differs from the first submission.

    Raises InputError if the code that the run keeps has changed.
    """
    before = _first_launch(state.paths)
    launch = make_launch(before, options)
    differences = differing_settings(launch.site, before.site)
    if (options.site or options.settings) and differences:
        same = launch.site_name == before.site_name
        there = "not as submitted" if same else f"not {before.site_name}"
        print_note(f"site {launch.site_name}, {there}: {', '.join(differences)}")
    if launch.live:
        print_note(f"runs the code in {ROOT} as it is when each cell starts")
        return launch
    snapshot = check_snapshot(state.paths)
    if snapshot is not None and snapshot.code != code_digest():
        print_note(f"runs the code that the run keeps; --live would run the code in {ROOT}")
    return launch


def _first_launch(paths: RunPaths) -> Launch:
    """How the run was first submitted; the interpreter is this one where that one is missing.

    Raises InputError for a damaged provenance.json, or none.
    """
    metadata = read_provenance(paths)
    if metadata is None:
        raise InputError(paths.provenance, None, "no such file", "what the run was submitted with")
    settings = metadata.get("site")
    if not isinstance(settings, dict) or not isinstance(settings.get("name"), str):
        raise InputError(paths.provenance, "site", repr(settings), "the site's name and settings")
    name = settings.pop("name")
    site = parse_site(settings, paths.provenance, "site")
    python = metadata.get("python")
    if not isinstance(python, str):
        raise InputError(paths.provenance, "python", repr(python), "the path of an interpreter")
    here = python if Path(python).is_file() else sys.executable
    return Launch(name, site, here, live=not paths.code_record.exists())


def select_cells(cells: Sequence[CellState], selection: Selection) -> list[CellState]:
    """The selected cells; those in state `unknown` only with `force`.

    Raises InputError for unknown arrays or indices, options that exclude each other, and cells
    selected by array or index that are running, pending or, without `force`, unknown.
    """
    array, arrays = selection.array, sorted({cell.array for cell in cells})
    by_state = selection.failed or selection.missing or selection.flagged
    if array is None and selection.index is None and not by_state:
        raise InputError("rerun", None, "no cell selected", SELECTIONS)
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
        _check_idle(pool, selection)
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


def _nothing_to_run(
    run: str | Path, current: RunStatus, unknown: Sequence[CellState]
) -> InputError:
    states = ", ".join(f"{count} {state}" for state, count in current.counts().items())
    found, allowed = f"no cell to run again ({states})", "a run with such cells"
    if unknown:
        found += f"; {unknown[0].array} {unknown[0].index} is unknown: {unknown[0].detail}"
        allowed += ", or --force, which may run unknown ones twice"
    return InputError(str(run), None, found, allowed)
