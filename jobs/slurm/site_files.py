"""Site files: where they are searched, and how later ones override earlier ones key by key.

The system's, the user's, the folder's, and the one that the user names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import expand_user, short_value
from gnnhpc.experiment.yaml_file import as_mapping, check_keys, read_mapping, read_text
from jobs.slurm.site import Site, check_site, parse_site
from jobs.sweep.settings_table import settings_table
from jobs.sweep.sweep_schema import DRAFT, Schema, plain_schema

SITE_FILE_VARIABLE = "GNNHPC_SITE_FILE"


@dataclass(frozen=True)
class SiteFile:
    """One file's sites as they are written; each is checked alone."""

    path: Path
    sites: dict[str, dict[str, Any]]
    default: str | None

    @property
    def chosen(self) -> str | None:
        """The site that this file would take: its default, or its only one."""
        return self.default or (next(iter(self.sites)) if len(self.sites) == 1 else None)


def load_site(file: str | Path | None = None, name: str | None = None) -> tuple[str, Site]:
    """The named site, or the nearest file's choice; without any site file, the built-in empty site.

    Raises InputError for an unknown site and for every mistake in the files.
    """
    files = [read_site_file(path) for path in find_site_files(file)]
    if not files:
        if name is not None:
            allowed = f"a site of a site file: --site-file, ${SITE_FILE_VARIABLE} or ./site.yaml"
            raise InputError("--site", None, repr(name), allowed)
        return "built-in", Site()
    names = sorted({known for each in files for known in each.sites})
    place, chosen = "--site", name
    if chosen is None:
        nearest = next((each for each in reversed(files) if each.chosen), None)
        if nearest is None:
            allowed = f"--site or a default, of {', '.join(names)}"
            raise InputError(files[-1].path, "default", "nothing", allowed)
        place, chosen = f"{nearest.path}: default", str(nearest.chosen)
    if chosen not in names:
        raise InputError(place, None, repr(chosen), ", ".join(names))
    return chosen, _merged(chosen, files)


def find_site_files(file: str | Path | None = None) -> list[Path]:
    """The site files that are used; of two that set one key the later one counts.

    The system's, the user's, ./site.yaml, and the given one or $GNNHPC_SITE_FILE.
    """
    system = platformdirs.site_config_dir("gnnhpc", multipath=True).split(os.pathsep)
    folders = (*reversed(system), platformdirs.user_config_dir("gnnhpc"), "")
    found = [path for folder in folders if (path := Path(folder, "site.yaml")).is_file()]
    if named := file or os.environ.get(SITE_FILE_VARIABLE):
        chosen = expand_user(named, "--site-file")
        found = [*(path for path in found if path != chosen), chosen]
    return found


def read_site_file(path: Path) -> SiteFile:
    """All sites of a file, and its default; raises InputError for every mistake in it."""
    raw = read_mapping(read_text(path, "a site file"), path, "sites and default")
    check_keys(raw, {"sites", "default"}, path, None)
    entries = as_mapping(raw.get("sites"), path, "sites")
    if not entries:
        raise InputError(path, "sites", "no site", "at least one")
    default = raw.get("default")
    if default is not None and not isinstance(default, str):
        raise InputError(path, "default", short_value(default), ", ".join(sorted(entries)))
    for name, entry in entries.items():
        parse_site(entry, path, f"sites.{name}")
    return SiteFile(path, {name: entry or {} for name, entry in entries.items()}, default)


def _merged(name: str, files: list[SiteFile]) -> Site:
    """The site of all files; an error names the last file that has the site."""
    raw: dict[str, Any] = {}
    of_this = [each for each in files if name in each.sites]
    for each in of_this:
        entry = each.sites[name]
        options = (raw.get("slurm") or {}) | (entry.get("slurm") or {})
        raw |= entry | ({"slurm": options} if options else {})
    where, key = of_this[-1].path, f"sites.{name}"
    site = parse_site(raw, where, key)
    check_site(site, where, key)
    return site


def site_schema() -> Schema:
    """The JSON Schema of a site file: its sites and its default."""
    site = plain_schema(Site)
    # YAML reads a time limit of plain minutes as a number.
    time = site["properties"]["time"]
    site["properties"]["time"] = {"anyOf": [{"type": "integer", "minimum": 1}, time]}
    site |= {"type": ["object", "null"], "description": (Site.__doc__ or "").partition("\n")[0]}
    default = {"type": "string", "description": "The site that is used without --site."}
    of_sites = {"additionalProperties": {"$ref": "#/$defs/site"}, "minProperties": 1}
    return {
        "$schema": DRAFT,
        "title": "gnnhpc site file",
        "type": "object",
        "properties": {"default": default, "sites": {"type": "object", **of_sites}},
        "required": ["sites"],
        "additionalProperties": False,
        "$defs": {"site": site},
    }


def site_keys() -> Iterator[str]:
    """Every key of a site file, as blocks of Markdown."""
    yield "# Site files"
    yield (
        "A site file has the key `sites`, with one entry a cluster, and `default`, the name of the "
        "one to use. [Write a site file](../how-to/site-file.md) shows one."
    )
    yield settings_table(Site)
