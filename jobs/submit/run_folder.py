"""Writes run folders: a new one appears complete or not at all."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.core.provenance import (
    PROVENANCE_VERSION,
    ROOT,
    code_digest,
    command_line,
    digest_of_sources,
    git_commit,
    machine,
    user,
    versions,
)
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.core.versioned_json import write_atomically
from gnnhpc.experiment.copy_custom_models import copy_models
from gnnhpc.experiment.manifest import write_manifest
from gnnhpc.records.code_snapshot import CodeSnapshot, file_digests
from gnnhpc.records.failures import utc_now
from jobs.slurm.batch_script import Launch, batch_script
from jobs.slurm.job_array import JobArray
from jobs.submit.submission import Submission
from jobs.sweep.plan import Plan


def write_run_folder(submission: Submission) -> RunPaths:
    """Write the folder of a new run under a temporary name beside it, then rename it.

    It keeps the code that this process runs, unless the launch is live, and the spec as submitted,
    with its overrides as comments at the top. Raises InputError if the
    run exists, also if it is created meanwhile.
    """
    run, launch, plan = submission.run, submission.launch, submission.plan
    assert plan is not None
    if run.exists() and any(run.iterdir()):
        raise _exists_error(run)
    work = run.parent / f".{run.name}.{os.getpid()}.tmp"
    try:
        work.mkdir(parents=True)
    except OSError as error:
        found = f"{run.parent}: {error.strerror}"
        raise InputError("--runs", None, found, "a folder that may be written") from None
    try:
        paths = RunPaths(work)
        for folder in (paths.arrays, paths.cells, paths.logs):
            folder.mkdir()
        notes = [f"# --set {json.dumps(override)}\n" for override in plan.overrides]
        paths.sweep.write_text("".join(notes) + plan.text, encoding="utf-8")
        write_manifest(paths.manifest, plan.cells)
        copy_models(paths, plan.experiments)
        code = code_digest() if launch.live else _keep_code(paths)
        _write_provenance(paths, plan, launch, code)
        for name, text in submission.files.items():
            _write_script(paths.arrays / name, text)
        try:
            work.rename(run)
        except OSError:
            raise _exists_error(run) from None
    except OSError as error:
        raise GnnhpcError(f"{run}: {error.strerror}, nothing submitted") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return RunPaths(run)


def _keep_code(paths: RunPaths) -> str:
    """Copy the packages that this process runs into `code/`; returns the digest of gnnhpc's.

    They come from a checkout, with all edits, or from where they are installed. Raises InputError
    if a file cannot be copied.
    """
    try:
        for name in file_digests(ROOT):
            copy = paths.code / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, copy)
    except OSError as error:
        found = f"code that the run cannot keep ({error.strerror}: {error.filename})"
        allowed = "files that may be read and room for a copy, or --live"
        raise InputError(ROOT, None, found, allowed) from None
    digest = digest_of_sources(paths.code / "gnnhpc")
    snapshot = CodeSnapshot(digest, git_commit(), str(ROOT), file_digests(paths.code))
    snapshot.write(paths.code_record)
    return digest


def script_of(submission: Submission, array: JobArray, paths: RunPaths) -> Path:
    """The script to submit: the array's own, or a new one where the launch is another.

    The array's own script runs all of its tasks; which of them run now is an option of sbatch.
    """
    own = paths.script(array.name)
    text = submission.files[own.name]
    if own.is_file() and _compared(own.read_text(encoding="utf-8")) == _compared(text):
        return own
    number = 1
    while (script := paths.script(f"{array.name}.rerun-{number}")).exists():
        number += 1
    name = script.name
    _write_script(script, batch_script(array, submission.run, submission.launch, script=name))
    return script


def _compared(script: str) -> list[str]:
    """The lines of a script that do not depend on its tasks or on where the run folder lies."""
    varying = ("# ", "#SBATCH --array", "#SBATCH --comment", "#SBATCH --job-name", "written_for=")
    return [line for line in script.splitlines() if not line.startswith(varying)]


def _write_script(path: Path, text: str) -> None:
    """Write a script, which may be run, or a table beside it."""
    write_atomically(path, text)
    if path.suffix == ".sbatch":
        path.chmod(0o755)


def _exists_error(run: Path) -> InputError:
    return InputError(run, None, "a run of this name", "another --name")


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
        "site": launch.recorded(),
    }
    write_atomically(paths.provenance, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
