"""Selects cells of a run and submits them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.index_list import format_indices, parse_indices
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.run_paths import RunPaths
from jobs.actions.after import jobs_to_wait_for
from jobs.actions.local_cells import ProgressListener
from jobs.actions.submit import Submission, check_cluster, start_cells
from jobs.cluster.site import Site
from jobs.folder.locked_files import open_run, run_lock
from jobs.folder.recorded_launch import relaunch
from jobs.folder.run_blocks import read_blocks
from jobs.folder.submission_records import first_submission
from jobs.state.failed_nodes import failed_nodes
from jobs.state.run_status import RunStatus, status
from jobs.state.states import FAILED, LIVE, UNFINISHED, UNKNOWN, CellStatus

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
    report: ProgressListener | None = None,
    watch: Callable[[RunStatus], None] | None = None,
    tell: Callable[[str], None] | None = None,
) -> Submission:
    """Submit cells of a run again, each as a new attempt.

    They run the code that the run keeps, where and with the site that it was submitted with;
    `live`, `cluster` and `site` say otherwise, `settings` stand in place of the site's own, and
    `tell` hears what is not as it was. With `exclude_failed` they get no node where a cell of the
    run failed by the node's fault; jobs begin `after` these have ended, which are run folders or
    job ids. `failed`: those that ended without a result; `missing`: those too, and those never
    tried; `flagged`: done with a flag; together with `array`, of that array alone. `paired`: the
    whole blocks that hold one of these. Cells whose jobs may wait or run, which Slurm does not say,
    are left alone unless `force`. Raises InputError if nothing is selected, or a cell named by its
    index or array is running, pending or unknown.
    """
    paths = open_run(run)
    cluster = _choose_cluster(paths, cluster, after, tell)
    if exclude_failed and cluster == "local":
        found = "--exclude-failed for cells of this machine"
        raise InputError("command line", None, found, "none, or --cluster slurm")
    waits = jobs_to_wait_for(after, cluster, tell)
    with run_lock(paths):
        current = status(paths.root, fresh=True)
        if exclude_failed:
            settings = without_nodes(settings or {}, failed_nodes(paths, current.cells), tell)
        how = relaunch(paths, cluster, site, settings, live=live)
        chosen = select_cells(
            current.cells,
            array=array,
            indices=None if index is None else parse_indices(index),
            failed=failed,
            missing=missing,
            flagged=flagged,
            force=force,
        )
        unknown = [cell for cell in current.cells if cell.state == UNKNOWN and not force]
        if not chosen:
            found = f"no cell to run again ({_counts(current)})"
            allowed = "a run with such cells"
            if unknown:
                found += f"; of {unknown[0].array} {unknown[0].index} {unknown[0].detail}"
                allowed += ", or --force, which may run unknown ones twice"
            raise InputError(str(run), None, found, allowed)
        wanted = {cell.cell for cell in chosen}
        manifest = read_manifest(paths.manifest)
        cells = [cell for cell in manifest if cell.id in wanted]
        if paired:
            wanted |= {
                cell.id
                for array in read_blocks(paths).arrays_with(cells, manifest)
                for cell in array.cells
            }
            check_idle([cell for cell in current.cells if cell.cell in wanted], force=force)
        how.tell(tell)
        if unknown and tell is not None:
            tell(f"leaves {len(unknown)} unknown cells alone: {unknown[0].detail}")
        started = start_cells(paths, cells, cluster, how.launch, wait, waits, paired=paired)
    return started.finish(report, watch, tell)


def _choose_cluster(
    paths: RunPaths,
    told: str | None,
    after: Sequence[str],
    tell: Callable[[str], None] | None,
) -> str:
    """Where the cells run: as told, else where the run was submitted.

    Raises InputError where they cannot, which says what decided.
    """
    if told is not None:
        check_cluster(told, paths.root)
        return told
    submitted = first_submission(paths)
    if submitted is not None and submitted.cluster == "local":
        if after:
            found = f"{after[0]} for {paths.root}, which was submitted {submitted.place}"
            raise InputError("--after", None, found, "none, or --cluster slurm")
        return "local"
    if submitted is None:
        check_cluster("slurm", paths.root, (), f"no word of where {paths.root} was submitted")
        if tell is not None:
            tell("the run does not say where it was submitted; uses Slurm")
    else:
        check_cluster("slurm", paths.root, (), f"{paths.root}, which was submitted to Slurm")
    return "slurm"


def select_cells(
    cells: Sequence[CellStatus],
    *,
    array: str | None = None,
    indices: Sequence[int] | None = None,
    failed: bool = False,
    missing: bool = False,
    flagged: bool = False,
    force: bool = False,
) -> list[CellStatus]:
    """The cells that `rerun`'s options select; those in state `unknown` only with `force`.

    Raises InputError for unknown arrays or indices, options that exclude each other, and cells
    selected by array or index that are running, pending or, without `force`, unknown.
    """
    arrays = {cell.array for cell in cells}
    by_state = failed or missing or flagged
    if array is None and indices is None and not by_state:
        raise InputError("rerun", None, "no cell selected", SELECTIONS)
    if array is not None and array not in arrays:
        raise InputError("--array", None, repr(array), ", ".join(sorted(arrays)))
    if indices is not None and by_state:
        raise InputError("--index", None, "a state beside it", "one of the two")
    if indices is not None and array is None and len(arrays) > 1:
        raise InputError("--index", None, "no --array", f"--array with {', '.join(sorted(arrays))}")
    pool = [cell for cell in cells if array is None or cell.array == array]
    if by_state:
        states = (FAILED if failed else ()) + (UNFINISHED if missing else ())
        states += (UNKNOWN,) if force and (failed or missing) else ()
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


def check_idle(cells: Sequence[CellStatus], *, force: bool) -> None:
    """Raises InputError for cells that run or wait, and without `force` for unknown ones."""
    busy = [cell for cell in cells if cell.state in LIVE]
    if busy:
        found = f"{busy[0].array} {busy[0].index}, which is {busy[0].state}"
        raise InputError(
            "rerun", None, found, "cells that neither run nor wait: wait, or cancel first"
        )
    unknown = [] if force else [cell for cell in cells if cell.state == UNKNOWN]
    if unknown:
        found = f"{unknown[0].array} {unknown[0].index}, of which {unknown[0].detail}"
        raise InputError("rerun", None, found, "--force, which may run it twice")


def without_nodes(
    settings: Mapping[str, Any], nodes: Sequence[str], tell: Callable[[str], None] | None
) -> dict[str, Any]:
    """The settings, with these nodes among those that jobs must not get."""
    if tell is not None:
        tell(f"nodes where a cell failed by their fault: {', '.join(nodes) or 'none'}")
    options = dict(settings.get("slurm") or {})
    known = [str(options["exclude"])] if "exclude" in options else []
    if names := [*known, *nodes]:
        options["exclude"] = ",".join(names)
    return {**settings, "slurm": options}


def _counts(current: RunStatus) -> str:
    return ", ".join(f"{count} {state}" for state, count in current.counts().items())
