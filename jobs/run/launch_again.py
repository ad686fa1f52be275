"""How the cells of an existing run are started: as at first, unless the user asks for changes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.provenance import code_digest
from gnnhpc.core.python_path import ROOT
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.records.code_snapshot import CodeSnapshot, check_snapshot
from gnnhpc.records.submissions import read_provenance
from jobs.slurm.launch import MOST_TASKS, Launch, differing_settings, for_cluster
from jobs.slurm.sbatch_options import check_local_options
from jobs.slurm.site import Site, changed_site, check_site, parse_site


@dataclass(frozen=True)
class AnotherLaunch:
    """How to start cells of a run again."""

    launch: Launch
    first: Launch
    """As the run was first submitted; its scripts stay so."""
    notes: tuple[str, ...] = ()
    """How the two differ."""


def launch_again(
    paths: RunPaths,
    cluster: str,
    site: tuple[str, Site] | None,
    settings: Mapping[str, Any],
    *,
    live: bool,
) -> AnotherLaunch:
    """The run's first launch, with `site` instead of its site, and `settings` over it.

    Raises InputError if the code that the run keeps has changed, and for settings that do not fit.
    """
    keeps_code = paths.code_record.exists()
    # A run of the checkout does not depend on the copy.
    snapshot = None if live else check_snapshot(paths)
    first = replace(read_launch(paths), live=not keeps_code)
    name, chosen = site or (first.site_name, first.site)
    chosen = changed_site(chosen, settings)
    check_site(chosen, "site")
    if cluster == "local":
        check_local_options(settings)
    launch = replace(first, site_name=name, site=chosen, live=live or not keeps_code)
    launch, before = for_cluster(launch, cluster), for_cluster(first, cluster)
    notes: list[str] = []
    if (site is not None or settings) and (
        differences := differing_settings(launch.site, before.site)
    ):
        there = "not as submitted" if name == first.site_name else f"not {first.site_name}"
        notes.append(f"site {name}, {there}: {', '.join(differences)}")
    notes += _notes_on_code(snapshot, live=launch.live)
    return AnotherLaunch(launch, first, tuple(notes))


def read_launch(paths: RunPaths) -> Launch:
    """How the run was submitted; the interpreter is this one where the recorded one is missing.

    Raises InputError for a damaged provenance.json, or none.
    """
    facts = read_provenance(paths)
    if facts is None:
        raise InputError(paths.provenance, None, "no such file", "what the run was submitted with")
    settings = facts.get("site")
    if not isinstance(settings, dict) or not isinstance(settings.get("name"), str):
        raise InputError(paths.provenance, "site", repr(settings), "the site's name and settings")
    name = settings.pop("name")
    site = parse_site(settings, paths.provenance, "site")
    python, limit = facts.get("python"), facts.get("array_limit", MOST_TASKS)
    if not isinstance(python, str):
        raise InputError(paths.provenance, "python", repr(python), "the path of an interpreter")
    if not isinstance(limit, int) or limit < 1:
        raise InputError(paths.provenance, "array_limit", repr(limit), "a whole number from 1")
    here = python if Path(python).is_file() else sys.executable
    return Launch(name, site, here, array_limit=limit)


def _notes_on_code(snapshot: CodeSnapshot | None, *, live: bool) -> list[str]:
    if live:
        return [f"runs the code in {ROOT} as it is when each cell starts"]
    if snapshot is not None and snapshot.code != code_digest():
        return [f"runs the code that the run keeps, not the code in {ROOT}, which --live would run"]
    return []
