"""Site files: where one is searched, and which of its sites is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import platformdirs
from pydantic import Field

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import Strict, build_strictly, expand_user
from gnnhpc.experiment.yaml_file import read_mapping, read_text
from jobs.slurm.site_settings import Site
from jobs.sweep.sweep_schema import DRAFT, Schema, plain_schema, settings_table

SITE_FILE_VARIABLE = "GNNHPC_SITE_FILE"


class SiteFile(Strict):
    """The sites of a file, by their names."""

    default: str | None = None
    """The site that is used without --site; not needed for a single one."""
    sites: dict[str, Site] = Field(min_length=1)
    """Settings of each cluster."""


def load_site(file: str | Path | None = None, name: str | None = None) -> tuple[str, Site]:
    """The named site of the site file, or its default; without any file the built-in empty site.

    Raises InputError for an unknown site and for every mistake in the file.
    """
    path = find_site_file(file)
    if path is None:
        if name is not None:
            allowed = f"a site of a site file: --site-file, ${SITE_FILE_VARIABLE} or ./site.yaml"
            raise InputError("--site", None, repr(name), allowed)
        return "built-in", Site()
    found = read_site_file(path)
    names = ", ".join(sorted(found.sites))
    chosen = name or found.default or (names if len(found.sites) == 1 else None)
    if chosen is None:
        raise InputError(path, "default", "nothing", f"--site or a default, of {names}")
    if chosen not in found.sites:
        place = "--site" if name else f"{path}: default"
        raise InputError(place, None, repr(chosen), names)
    return chosen, found.sites[chosen]


def find_site_file(file: str | Path | None = None) -> Path | None:
    """The given one, else the first of $GNNHPC_SITE_FILE, ./site.yaml, the user's, the system's."""
    if named := file or os.environ.get(SITE_FILE_VARIABLE):
        return expand_user(named, "--site-file")
    system = platformdirs.site_config_dir("gnnhpc", multipath=True).split(os.pathsep)
    folders = ("", platformdirs.user_config_dir("gnnhpc"), *system)
    return next((path for each in folders if (path := Path(each, "site.yaml")).is_file()), None)


def read_site_file(path: Path) -> SiteFile:
    """All sites of a file, and its default; raises InputError for every mistake in it."""
    raw = read_mapping(read_text(path, "a site file"), path, "sites and default")
    return build_strictly(SiteFile, raw, path)


def site_schema() -> Schema:
    """The JSON Schema of a site file."""
    return {"$schema": DRAFT, "title": "gnnhpc site file"} | plain_schema(SiteFile)


def site_keys() -> Iterator[str]:
    """Every key of a site file, as blocks of Markdown."""
    yield "# Site files"
    yield (
        "A site file has the key `sites`, with one entry a cluster, and `default`, the name of the "
        "one to use. [Write a site file](../how-to/site-file.md) shows one."
    )
    yield settings_table(Site)
