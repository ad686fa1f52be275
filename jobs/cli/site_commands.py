"""`site init`, `site check` and `schema`: commands about the files that users write."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED
from jobs.cli.options import SiteFile, SiteName

INIT_EPILOG = "Example: python -m jobs site init --out site.yaml"
SCHEMA_EPILOG = "Example: python -m jobs schema sweep > sweep.schema.json"


class Written(StrEnum):
    sweep = "sweep"
    site = "site"


def site_init(
    out: Annotated[Path, typer.Option(help="The file to write, which must not exist.")] = Path(
        "site.yaml"
    ),
) -> int:
    """Write a site file from what Slurm says of this cluster: partitions, limits, your accounts."""
    from jobs.slurm.site_init import query_offer, site_file_text, write_site_file

    write_site_file(out, site_file_text(query_offer()))
    print(f"wrote {out}; next: {as_typed('jobs', 'site check')} --site-file {out}")
    return EXIT_DONE


def site_check(site: SiteName = None, site_file: SiteFile = None) -> int:
    """Compare the site's settings with what sinfo says the cluster has; submits nothing."""
    from jobs.slurm.launch import array_limit, slurm_limit
    from jobs.slurm.site_check import query_partitions, site_mismatches
    from jobs.slurm.site_files import find_site_files, load_site

    name, settings = load_site(site_file, site)
    files = ", then ".join(map(str, find_site_files(site_file)))
    print(f"site {name}, from {files or 'no site file'}")
    for key, value in settings.model_dump(exclude_defaults=True).items():
        print(f"  {key}: {value}")
    size = slurm_limit("MaxArraySize")
    known = "unknown" if size is None else str(size)
    most = array_limit(settings, size)
    print(f"  arrays of at most {most} cells, larger ones in parts (MaxArraySize {known})")
    partitions = query_partitions()
    if partitions is None:
        print("no sinfo here: the file is valid, but cannot be compared with the cluster")
        return EXIT_DONE
    for part in partitions:
        print(f"  partition {part.described()}")
    wrong = site_mismatches(settings, partitions)
    for line in wrong:
        print(f"does not fit: {line}")
    print("not checked: account, qos and modules, which sinfo does not list")
    if not wrong:
        print("fits")
    return EXIT_FAILED if wrong else EXIT_DONE


def schema(
    what: Annotated[Written, typer.Argument(help="The schema of sweeps, or of site files.")],
) -> int:
    """Print the JSON Schema of sweeps or site files, by which editors complete and check them.

    The first line of a file names it: # yaml-language-server: $schema=sweep.schema.json
    """
    import json

    from jobs.slurm.site_files import site_schema
    from jobs.sweep.sweep_schema import sweep_schema

    found = sweep_schema() if what == Written.sweep else site_schema()
    print(json.dumps(found, indent=1, ensure_ascii=False))
    return EXIT_DONE
