"""Creates and extends run folders; a new one appears complete or not at all."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.distributed.secret import make_secret
from gnnhpc.experiment.manifest import Cell, read_manifest, write_manifest
from gnnhpc.experiment.own_model_files import copy_models
from gnnhpc.records.code_snapshot import read_snapshot
from gnnhpc.records.provenance import (
    code_digest,
    command_line,
    git_commit,
    machine,
    user,
    versions,
)
from gnnhpc.records.run_facts import PROVENANCE_VERSION
from gnnhpc.records.run_paths import RunPaths, write_atomically
from jobs.cluster.array_script import render_script
from jobs.cluster.arrays import Array, group_by_array
from jobs.cluster.blocks import BlockArray, block_array_name, in_parts, needs_of
from jobs.cluster.launch import Launch
from jobs.folder.code_copy import check_importable_from, check_lines_are_readable, keep_code
from jobs.folder.locked_files import append_lines, utc_now
from jobs.folder.run_blocks import add_blocks, read_blocks
from jobs.spec.planning import Plan, no_new_cells_error, plan_of_new_cells


def create_run_folder(
    plan: Plan, run: Path, launch: Launch, *, reporting: bool = False, paired: bool = False
) -> RunPaths:
    """Create the run folder `run`: written under a temporary name beside it, then renamed.

    It keeps the code that this process runs, unless the launch is live, with that of reports where
    a job is to write one (`reporting`); `paired` draws blocks. Raises InputError if it exists
    already, also if another submit creates it meanwhile.
    """
    if not launch.live:
        check_importable_from(run)
    if run.exists() and any(run.iterdir()):
        raise run_exists_error(run)
    try:
        run.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{run.name}.", suffix=".tmp", dir=run.parent))
    except OSError as error:
        raise InputError(
            "--runs", None, f"{run.parent}: {error.strerror}", "a folder that may be written"
        ) from None
    try:
        paths = RunPaths(work)
        for folder in (paths.arrays, paths.cells, paths.logs):
            folder.mkdir()
        paths.sweep.write_text(spec_text_with_overrides(plan), encoding="utf-8")
        write_manifest(paths.manifest, plan.cells)
        copy_models(paths, (cell.experiment for cell in plan.cells))
        code = code_digest() if launch.live else keep_code(paths, reporting=reporting).code
        _write_provenance(paths, plan, launch, code)
        _write_scripts(paths, run, group_by_array(plan.cells, launch.array_limit), launch)
        if paired:
            _write_block_scripts(paths, run, plan.cells, plan.cells, launch)
        _make_readable(work)
        make_secret(paths.secret)
        try:
            work.rename(run)
        except OSError:
            raise run_exists_error(run) from None
    except OSError as error:
        raise GnnhpcError(f"{run}: {error.strerror}, nothing submitted") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return RunPaths(run)


def extend_run_folder(plan: Plan, paths: RunPaths, launch: Launch, submitted: Launch) -> Plan:
    """Add the plan's cells that a run does not have; returns the plan of these alone.

    Indices follow the run's last, and old manifest lines stay unchanged. Scripts of arrays that the
    run has already stay as it was `submitted`; where it has blocks, new ones follow. Raises
    InputError if the folder is no run, has every cell already, or keeps code that does not read the
    new cells.
    """
    existing = read_manifest(paths.manifest)
    new = plan_of_new_cells(plan, existing)
    if not new.cells:
        raise no_new_cells_error(plan, paths.root)
    lines = [cell.to_line() for cell in new.cells]
    if (snapshot := read_snapshot(paths)) is not None:
        check_lines_are_readable(paths, snapshot, lines)
    copy_models(paths, (cell.experiment for cell in new.cells))
    append_lines(paths.manifest, lines)
    number = 2
    while (copy := paths.root / f"sweep-{number}.yaml").exists():
        number += 1
    write_atomically(copy, spec_text_with_overrides(plan))
    touched = {cell.array for cell in new.cells}
    before = {cell.array for cell in existing}
    cells = [cell for cell in (*existing, *new.cells) if cell.array in touched]
    launch = replace(launch, live=submitted.live)
    for group, how in (
        ([cell for cell in cells if cell.array in before], submitted),
        ([cell for cell in cells if cell.array not in before], launch),
    ):
        _write_scripts(paths, paths.root, group_by_array(group, how.array_limit), how)
    if read_blocks(paths).tables:
        _write_block_scripts(paths, paths.root, new.cells, (*existing, *new.cells), submitted)
    return new


def run_exists_error(run: Path) -> InputError:
    return InputError(
        run, None, "a run of this name", "another --name, or --extend to add cells to it"
    )


def spec_text_with_overrides(plan: Plan) -> str:
    """The spec as submitted, with its overrides as comments at the top."""
    notes = [f"# --set {json.dumps(override)}\n" for override in plan.overrides]
    return "".join(notes) + plan.text


def _write_provenance(paths: RunPaths, plan: Plan, launch: Launch, code: str) -> None:
    facts = {
        "version": PROVENANCE_VERSION,
        "created_at": utc_now(),
        "name": plan.name,
        "commit": git_commit(),
        "code": code,
        "code_from": "live" if launch.live else "snapshot",
        "versions": versions(),
        "host": socket.gethostname(),
        "machine": machine(),
        "python": launch.python,
        "user": user(),
        "command": command_line(),
        "spec": plan.source,
        "overrides": list(plan.overrides),
        "data_root": plan.data_root,
        "cells": len(plan.cells),
        "site": {"name": launch.site_name} | launch.site.settings(),
        "array_limit": launch.array_limit,
    }
    write_atomically(paths.provenance, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def _write_scripts(
    paths: RunPaths, run: Path, arrays: Sequence[Array | BlockArray], launch: Launch
) -> None:
    """Write each array's batch script; `run` is the folder's final path."""
    for array in arrays:
        script = paths.script(array.label)
        needs = needs_of(array, launch.site)
        write_atomically(script, render_script(array, run.absolute(), needs, launch))
        script.chmod(0o755)


def _write_block_scripts(
    paths: RunPaths, run: Path, new: Sequence[Cell], cells: Sequence[Cell], launch: Launch
) -> None:
    """Draw blocks for the new cells; write the scripts of all blocks of their models."""
    blocks = add_blocks(paths, new)
    touched = {block_array_name(cell) for cell in new}
    arrays = blocks.arrays_with([c for c in cells if block_array_name(c) in touched], cells)
    _write_scripts(paths, run, in_parts(arrays, launch.array_limit), launch)


def _make_readable(folder: Path) -> None:
    """Make everything readable by everyone and writable by its owner, whatever the umask was."""
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() or path.suffix == ".sbatch" else 0o644)
