"""How the cells of an existing run are started: as they were at first, unless told otherwise."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.python_path import ROOT
from gnnhpc.records.code_snapshot import CodeSnapshot, check_snapshot
from gnnhpc.records.provenance import code_digest
from gnnhpc.records.run_facts import read_provenance
from gnnhpc.records.run_paths import RunPaths
from jobs.cluster.array_limit import MOST_TASKS
from jobs.cluster.launch import THREADS_VARIABLE, Launch, differing_settings, limited, resolved
from jobs.cluster.sbatch_options import check_used_here
from jobs.cluster.site import Site, changed_site, check_site, parse_site
from jobs.cluster.site_files import load_site


@dataclass(frozen=True)
class Relaunch:
    """How to start cells of a run again, and what a user should know of it."""

    launch: Launch
    submitted: Launch
    """As the run was submitted: its scripts stay so."""
    notes: tuple[str, ...] = ()

    def tell(self, listener: Callable[[str], None] | None) -> None:
        if listener is not None:
            for note in self.notes:
                listener(note)


def relaunch(
    paths: RunPaths,
    cluster: str,
    told: tuple[str, Site] | None,
    settings: Mapping[str, Any] | None = None,
    *,
    live: bool,
) -> Relaunch:
    """The settings of the submission, with `told` in place of its site, and `settings` over them.

    A run without code of its own runs the checkout's. Raises InputError if that code is not what
    it was, and for settings that do not fit.
    """
    notes: list[str] = []
    keeps_code = paths.code_record.exists()
    # Whoever runs the checkout need not mind what became of the copy.
    snapshot = None if live else check_snapshot(paths)
    submitted = read_launch(paths)
    if submitted is None:
        name, site = told or load_site()
        submitted = Launch(name, site)
        notes.append(f"the run does not say with which site it was submitted; uses {name}")
    submitted = replace(submitted, live=not keeps_code)
    name, site = told or (submitted.site_name, submitted.site)
    site = changed_site(site, settings or {})
    check_site(site, "site")
    if cluster == "local":
        check_used_here(settings or {})
    site = resolved(site, cluster)
    launch = replace(submitted, site_name=name, site=site, live=live or not keeps_code)
    launch = limited(launch, cluster)
    before = resolved(submitted.site, cluster)
    if (told is not None or settings) and (differences := differing_settings(site, before)):
        same = name == submitted.site_name
        there = "not as submitted" if same else f"not {submitted.site_name} as submitted"
        notes.append(f"site {name}, {there}: {', '.join(differences)}")
    notes += _notes_on_threads(launch, cluster) + _notes_on_python(launch, cluster)
    notes += _notes_on_code(snapshot, live=live)
    return Relaunch(launch, submitted, tuple(notes))


def read_launch(paths: RunPaths) -> Launch | None:
    """How the run was submitted; None where it does not say.

    The interpreter is this one where the recorded one is not on this machine. Raises InputError
    for a damaged provenance.json.
    """
    facts = read_provenance(paths) or {}
    settings = facts.get("site")
    if settings is None:
        return None
    if not isinstance(settings, dict) or not isinstance(settings.get("name"), str):
        raise InputError(paths.provenance, "site", repr(settings), "the site's name and settings")
    settings = dict(settings)
    name = settings.pop("name")
    site = parse_site(settings, paths.provenance, "site")
    python = facts.get("python") or sys.executable
    if not isinstance(python, str):
        raise InputError(paths.provenance, "python", repr(python), "the path of an interpreter")
    limit = facts.get("array_limit", MOST_TASKS)
    if not isinstance(limit, int) or limit < 1:
        raise InputError(paths.provenance, "array_limit", repr(limit), "a whole number from 1")
    here = python if Path(python).is_file() else sys.executable
    return Launch(name, site, here, array_limit=limit)


def _notes_on_threads(launch: Launch, cluster: str) -> list[str]:
    """Slurm's jobs inherit the variables of the shell that submits them."""
    threads, cpus = os.environ.get(THREADS_VARIABLE), launch.site.cpus_per_task
    if cluster != "slurm" or threads in (None, "", str(cpus)):
        return []
    return [f"the jobs inherit {THREADS_VARIABLE}={threads}, in place of the site's {cpus} threads"]


def _notes_on_python(launch: Launch, cluster: str) -> list[str]:
    site = launch.site
    named = cluster == "slurm" and (site.python or site.activate or site.container)
    if named or launch.python == sys.executable:
        return []
    return [f"runs {launch.python}, as the run was submitted, not {sys.executable}"]


def _notes_on_code(snapshot: CodeSnapshot | None, *, live: bool) -> list[str]:
    if live:
        return [f"runs the code in {ROOT} as it is when each cell starts"]
    if snapshot is None:
        return [f"the run keeps no code of its own; runs that in {ROOT}"]
    if snapshot.code != code_digest():
        return [f"runs the code that the run keeps, not that in {ROOT}, which --live would"]
    return []
