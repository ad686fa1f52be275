"""`site init` and `site check`: a site file and the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.cli_support import as_typed
from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED
from jobs.commands.flags import SiteFile, SiteName

INIT_EPILOG = "Example: python -m jobs site init --out site.yaml"


def site_init(
    out: Annotated[Path, typer.Option(help="The file to write; it must not be there.")] = Path(
        "site.yaml"
    ),
) -> int:
    """Write a site file from what Slurm says of this cluster: partitions, limits, your accounts."""
    from jobs.cluster.site_init import query_offer, site_file_text, write_site_file

    write_site_file(out, site_file_text(query_offer()))
    print(f"wrote {out}; next: {as_typed('jobs', 'site check')} --site-file {out}")
    return EXIT_DONE


def site_check(site: SiteName = None, site_file: SiteFile = None) -> int:
    """Compare the site's settings with what sinfo says the cluster has; submits nothing."""
    from jobs.cluster.array_limit import array_limit, query_limits
    from jobs.cluster.site_check import query_partitions, site_mismatches
    from jobs.cluster.site_files import find_site_files, load_site

    name, settings = load_site(site_file, site)
    files = ", then ".join(map(str, find_site_files(site_file)))
    print(f"site {name}, of {files or 'no site file'}")
    for key, value in settings.model_dump(exclude_defaults=True).items():
        print(f"  {key}: {value}")
    limits = query_limits()
    said = "not known" if limits.array_size is None else str(limits.array_size)
    most = array_limit(settings, limits)
    print(f"  arrays of at most {most} cells, larger ones in parts (MaxArraySize {said})")
    partitions = query_partitions()
    if partitions is None:
        print("no sinfo here: the file is valid, but cannot be compared with the cluster")
        return EXIT_DONE
    for part in partitions:
        limit = "no limit" if part.time_min is None else f"{part.time_min} min"
        mark = " (default)" if part.default else ""
        offer = f"{part.nodes} nodes, {part.cpus} CPUs, {part.mem_mib} MiB, {limit}"
        print(f"  partition {part.name}{mark}: {offer}{', ' + part.gres if part.gres else ''}")
    wrong = site_mismatches(settings, partitions)
    for line in wrong:
        print(f"does not fit: {line}")
    print("not checked: account, qos and modules, which sinfo does not list")
    if not wrong:
        print("fits")
    return EXIT_FAILED if wrong else EXIT_DONE
