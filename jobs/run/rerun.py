"""Selects cells of a run and submits them again, each as a new attempt."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.records.failures import is_fault_of_node
from gnnhpc.records.schema import read_lines
from jobs.run.launch_again import launch_again
from jobs.run.local_runs import Progress
from jobs.run.open_run import open_run, run_lock
from jobs.run.run_state import RunState, read_run
from jobs.run.states import FAILED, LIVE, UNFINISHED, CellState
from jobs.run.status import RunStatus, status_of
from jobs.run.submission import Options, resubmission
from jobs.run.submit import (
    Notify,
    Submitted,
    check_after,
    check_cluster,
    jobs_of,
    jobs_to_wait_for,
    scheduler_for,
    submit_arrays,
    wait_for,
)
from jobs.slurm.array_indices import format_indices, parse_indices
from jobs.slurm.site import Site

SELECTIONS = "--index with --array, --array alone, --failed, --missing or --flagged"


def rerun(
    run: str | Path,
    *,
    array: str | None = None,
    index: str | None = None,
    failed: bool = False,
    missing: bool = False,
    flagged: bool = False,
    force: bool = False,
    cluster: str | None = None,
    site: tuple[str, Site] | None = None,
    settings: Mapping[str, Any] | None = None,
    exclude_failed: bool = False,
    after: Sequence[str] = (),
    paired: bool = False,
    live: bool = False,
    wait: bool = False,
    progress: Progress | None = None,
    watch: Callable[[RunStatus], None] | None = None,
    notify: Notify = lambda note: None,
) -> Submitted:
    """Submit cells of a run again: those that `failed`, are `missing` or `flagged`, or by index.

    They run the code that the run keeps, where and with the site that it was submitted with, unless
    `live`, `cluster`, `site` or `settings` say otherwise. `exclude_failed` keeps them from nodes
    where a rank of the run was lost or hung. `paired` runs the whole blocks that hold the cells.
    Raises InputError if nothing is selected, and for a cell named by array or index that runs,
    waits or, without `force`, may do so.
    """
    paths = open_run(run)
    with run_lock(paths):
        state = read_run(run)
        cluster = _choose_cluster(state, cluster, after)
        if exclude_failed and cluster == "local":
            found = "--exclude-failed for a local run"
            raise InputError("command line", None, found, "none, or --cluster slurm")
        check_after(after, cluster)
        waits = jobs_to_wait_for(after, notify)
        current = status_of(state, fresh=True)
        settings = dict(settings or {})
        if exclude_failed:
            nodes = failed_nodes(state, current.cells)
            notify(f"nodes where a rank was lost or hung: {', '.join(nodes) or 'none'}")
            settings = without_nodes(settings, nodes)
        again = launch_again(paths, cluster, site, settings, live=live)
        chosen = select_cells(
            current.cells,
            array=array,
            indices=None if index is None else parse_indices(index),
            failed=failed,
            missing=missing,
            flagged=flagged,
            force=force,
        )
        unknown = [cell for cell in current.cells if cell.state == "unknown" and not force]
        if not chosen:
            raise _nothing_to_run(run, current, unknown)
        if again.launch.site.max_parallel and cluster == "slurm":
            waits += jobs_of(state, "max_parallel")
        ids = {cell.cell for cell in chosen}
        cells = [cell for cell in state.cells if cell.id in ids]
        options = Options(cluster, paired, tuple(waits))
        submission = resubmission(state, cells, again.launch, options)
        if paired:
            ids = {cell.id for cell in submission.cells}
            check_idle([cell for cell in current.cells if cell.cell in ids], force=force)
        for note in (*again.notes, *submission.notes):
            notify(note)
        if unknown:
            notify(f"leaves {len(unknown)} unknown cells alone: {unknown[0].detail}")
        jobs = submit_arrays(submission, scheduler_for(cluster, wait=wait), paths)
    submitted = Submitted(submission, cluster, tuple(jobs))
    return wait_for(submitted, progress, watch, notify) if wait else submitted


def _choose_cluster(state: RunState, given: str | None, after: Sequence[str]) -> str:
    """Where the cells run: where the user says, else where the run was first submitted."""
    root = state.paths.root
    if given is not None:
        check_cluster(given, root)
        return given
    first = next(iter(state.submissions), None)
    if first is not None and first.cluster == "local":
        if after:
            found = f"{after[0]} for {root}, which was submitted {first.place}"
            raise InputError("--after", None, found, "none, or --cluster slurm")
        return "local"
    check_cluster("slurm", root, (), f"{root}, which was submitted to Slurm" if first else None)
    return "slurm"


def select_cells(
    cells: Sequence[CellState],
    *,
    array: str | None = None,
    indices: Sequence[int] | None = None,
    failed: bool = False,
    missing: bool = False,
    flagged: bool = False,
    force: bool = False,
) -> list[CellState]:
    """The cells that `rerun`'s options select; those in state `unknown` only with `force`.

    Raises InputError for unknown arrays or indices, options that exclude each other, and cells
    selected by array or index that are running, pending or, without `force`, unknown.
    """
    arrays = sorted({cell.array for cell in cells})
    by_state = failed or missing or flagged
    if array is None and indices is None and not by_state:
        raise InputError("rerun", None, "no cell selected", SELECTIONS)
    if array is not None and array not in arrays:
        raise InputError("--array", None, repr(array), ", ".join(arrays))
    if indices is not None and by_state:
        raise InputError("--index", None, "a state beside it", "one of the two")
    if indices is not None and array is None and len(arrays) > 1:
        raise InputError("--index", None, "no --array", f"--array with {', '.join(arrays)}")
    pool = [cell for cell in cells if array is None or cell.array == array]
    if by_state:
        states = (FAILED if failed else ()) + (UNFINISHED if missing else ())
        states += ("unknown",) if force and (failed or missing) else ()
        return [
            cell
            for cell in pool
            if cell.state in states
            or (flagged and cell.flags and cell.state in ("done", "flagged"))
        ]
    if indices is not None:
        have = {cell.index for cell in pool}
        absent = [number for number in indices if number not in have]
        if absent:
            raise InputError("--index", None, absent[0], format_indices(have))
        pool = [cell for cell in pool if cell.index in set(indices)]
    check_idle(pool, force=force)
    return pool


def check_idle(cells: Sequence[CellState], *, force: bool) -> None:
    """Raises InputError for cells that run or wait, and without `force` for unknown ones."""
    for cell in cells:
        if cell.state in LIVE:
            found = f"{cell.array} {cell.index}, which is {cell.state}"
            allowed = "cells that neither run nor wait: wait, or cancel first"
            raise InputError("rerun", None, found, allowed)
        if cell.state == "unknown" and not force:
            found = f"{cell.array} {cell.index}, which is unknown: {cell.detail}"
            raise InputError("rerun", None, found, "--force, which may run it twice")


def failed_nodes(state: RunState, cells: Sequence[CellState]) -> list[str]:
    """Names of nodes where a rank was lost or hung, in any attempt of a Slurm job.

    Of a lost cell they are the nodes whose ranks wrote records and no failure.
    """
    found: set[str] = set()
    for cell in cells:
        attempts = state.attempts.get(cell.cell, [])
        for attempt in attempts:
            result = attempt.result
            if result is None or result.failure is None or result.slurm_job is None:
                continue
            if is_fault_of_node(result.failure):
                found.add(result.failure.host)
        if cell.state == "lost" and attempts:
            found.update(_silent_hosts(attempts[-1].paths))
    return sorted(found)


def _silent_hosts(attempt: AttemptPaths) -> Iterator[str]:
    for records in sorted(attempt.root.glob("rank-*.jsonl")):
        with contextlib.suppress(InputError):
            lines = read_lines(records)
            failure = records.with_suffix(".failure.json")
            if lines and lines[0].get("slurm") and not failure.exists():
                yield str(lines[0]["host"])


def without_nodes(settings: dict[str, Any], nodes: Sequence[str]) -> dict[str, Any]:
    """The settings, with these nodes among those that jobs must not get."""
    options = dict(settings.get("slurm") or {})
    known = [str(options["exclude"])] if "exclude" in options else []
    if names := [*known, *nodes]:
        options["exclude"] = ",".join(names)
    return {**settings, "slurm": options}


def _nothing_to_run(
    run: str | Path, current: RunStatus, unknown: Sequence[CellState]
) -> InputError:
    states = ", ".join(f"{count} {state}" for state, count in current.counts().items())
    found, allowed = f"no cell to run again ({states})", "a run with such cells"
    if unknown:
        found += f"; {unknown[0].array} {unknown[0].index} is unknown: {unknown[0].detail}"
        allowed += ", or --force, which may run unknown ones twice"
    return InputError(str(run), None, found, allowed)
