"""Selects cells of a run and submits them again, each as a new attempt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import code_digest
from gnnhpc.core.python_path import ROOT
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.code_snapshot import check_snapshot
from gnnhpc.records.failures import is_fault_of_node
from gnnhpc.records.schema import read_lines
from jobs.run.cell_evidence import CellState
from jobs.run.cell_state import FAILED, LIVE, UNFINISHED
from jobs.run.run_state import RunState, open_run, read_launch, read_run
from jobs.run.status import RunStatus, status_of
from jobs.run.submission_records import run_lock
from jobs.slurm.job_array import format_indices, parse_indices
from jobs.slurm.launch import Launch, differing_settings, for_cluster
from jobs.slurm.site import Site
from jobs.submission.local_cells import Show, print_now
from jobs.submission.submission import Options, Submission, resubmission
from jobs.submission.submit import (
    Notify,
    Submitted,
    Watch,
    changed_launch,
    check_after,
    check_cluster,
    jobs_of,
    jobs_to_wait_for,
    wait_for,
)
from jobs.submission.submit_arrays import submit_arrays

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
    *,
    cluster: str | None = None,
    site: tuple[str, Site] | None = None,
    settings: Mapping[str, Any] | None = None,
    exclude_failed: bool = False,
    after: Sequence[str] = (),
    paired: bool = False,
    live: bool = False,
    wait: bool = False,
    show: Show = print_now,
    watch: Watch | None = None,
    notify: Notify = lambda note: None,
) -> Submitted:
    """Submit the selected cells of a run again.

    They run the code that the run keeps, where and with the site that it was submitted with, unless
    `live`, `cluster`, `site` or `settings` say otherwise. `exclude_failed` keeps them from nodes
    where a rank of the run was lost or hung. `paired` runs the whole blocks that hold the cells.
    Raises InputError if nothing is selected, and for a cell named by array or index that runs,
    waits or, without `force`, may do so.
    """
    paths = open_run(run)
    with run_lock(paths):
        submission, cluster = prepare_rerun(
            run,
            selection,
            cluster=cluster,
            site=site,
            settings=settings,
            exclude_failed=exclude_failed,
            after=after,
            paired=paired,
            live=live,
            notify=notify,
        )
        arrays = submit_arrays(submission, cluster, paths, wait=wait)
    submitted = Submitted(submission, cluster, tuple(arrays))
    return wait_for(submitted, show, watch, notify) if wait else submitted


def prepare_rerun(
    run: str | Path,
    selection: Selection,
    *,
    cluster: str | None,
    site: tuple[str, Site] | None,
    settings: Mapping[str, Any] | None,
    exclude_failed: bool,
    after: Sequence[str],
    paired: bool,
    live: bool,
    notify: Notify,
) -> tuple[Submission, str]:
    """What `rerun` submits, and where; nothing is written. Raises as `rerun`."""
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
    launch = _launch(state.paths, cluster, site, settings, live=live, notify=notify)
    chosen = select_cells(current.cells, selection)
    may_run = [cell for cell in current.cells if cell.state == "unknown" and not selection.force]
    if not chosen:
        raise _nothing_to_run(run, current, may_run)
    if launch.site.max_parallel and cluster == "slurm":
        waits += jobs_of(state, "max_parallel")
    ids = {cell.cell for cell in chosen}
    cells = [cell for cell in state.cells if cell.id in ids]
    submission = resubmission(state, cells, launch, Options(cluster, paired, tuple(waits)))
    if paired:
        ids = {cell.id for cell in submission.cells}
        _check_idle([cell for cell in current.cells if cell.cell in ids], selection)
    for note in submission.notes:
        notify(note)
    if may_run:
        notify(f"leaves {len(may_run)} unknown cells alone: {may_run[0].detail}")
    return submission, cluster


def _launch(
    paths: RunPaths,
    cluster: str,
    site: tuple[str, Site] | None,
    settings: Mapping[str, Any],
    *,
    live: bool,
    notify: Notify,
) -> Launch:
    """The run's first launch, with `site` instead of its site, and `settings` over it.

    Raises InputError if the code that the run keeps has changed, and for settings that do not fit.
    """
    before = read_launch(paths)
    # A run of the checkout does not depend on the copy.
    snapshot = None if live else check_snapshot(paths)
    launch = changed_launch(before, site, settings, cluster)
    launch = replace(launch, live=live or before.live)
    differences = differing_settings(launch.site, for_cluster(before, cluster).site)
    if (site is not None or settings) and differences:
        same = launch.site_name == before.site_name
        there = "not as submitted" if same else f"not {before.site_name}"
        notify(f"site {launch.site_name}, {there}: {', '.join(differences)}")
    if launch.live:
        notify(f"runs the code in {ROOT} as it is when each cell starts")
    elif snapshot is not None and snapshot.code != code_digest():
        notify(f"runs the code that the run keeps, not the code in {ROOT}, which --live would run")
    return launch


def _choose_cluster(state: RunState, given: str | None, after: Sequence[str]) -> str:
    """The place where the cells run: the user's choice, else that of the first submission."""
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
        or (selection.flagged and cell.flags and cell.state in ("done", "flagged"))
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
