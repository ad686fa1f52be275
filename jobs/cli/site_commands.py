"""`site init`, `site check` and `schema`: commands about the files that users write."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.cli_options import as_typed
from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED
from jobs.cli.typer_app import SiteFile, SiteName, app

site_app = typer.Typer(help="Write and check site settings.", no_args_is_help=True)
app.add_typer(site_app, name="site")


class Written(StrEnum):
    sweep = "sweep"
    site = "site"


@site_app.command("init", epilog="Example: gnnhpc site init --out site.yaml")
def site_init(
    out: Annotated[Path, typer.Option(help="The file to write, which must not exist.")] = Path(
        "site.yaml"
    ),
) -> int:
    """Write a site file from what Slurm says of this cluster: partitions, limits, your accounts."""
    from jobs.slurm.partitions import query_site_file, write_site_file

    write_site_file(out, query_site_file())
    print(f"wrote {out}; next: {as_typed('jobs', 'site check')} --site-file {out}")
    return EXIT_DONE


@site_app.command("check")
def site_check(site: SiteName = None, site_file: SiteFile = None) -> int:
    """Ask Slurm whether it would take a job of one node with the site's settings.

    Submits nothing.
    """
    from jobs.slurm.job_array import Resources
    from jobs.slurm.partitions import longest_time_min, query_partitions
    from jobs.slurm.read_site_file import find_site_file, load_site
    from jobs.slurm.sbatch import refusal

    name, settings = load_site(site_file, site)
    print(f"site {name}, from {find_site_file(site_file) or 'no site file'}")
    for key, value in settings.model_dump(exclude_defaults=True).items():
        print(f"  {key}: {value}")
    partitions = query_partitions()
    if partitions is None:
        print("no sinfo here: the file is valid, but cannot be compared with the cluster")
        return EXIT_DONE
    for part in partitions:
        print(f"  partition {part.described}")
    gpus = settings.gres, settings.gpus_per_node
    needs = Resources(settings, 1, settings.tasks_per_node, settings.time_min, *gpus)
    wrong = list(filter(None, [refusal(needs.options())]))
    # By default Slurm takes a job above this limit, and never starts it.
    longest = longest_time_min(settings)
    if longest is not None and settings.time_min > longest:
        wrong.append(f"time: found {settings.time}; allowed: at most {longest} minutes")
    for line in wrong:
        print(f"does not fit: {line}")
    print("not checked: modules and set-up lines, which run in the job")
    if not wrong:
        print(f"fits; next: {as_typed('jobs', 'submit')} SPEC.yaml --paired")
    return EXIT_FAILED if wrong else EXIT_DONE


@app.command(epilog="Example: gnnhpc schema sweep > sweep.schema.json")
def schema(
    what: Annotated[Written, typer.Argument(help="Sweeps or site files.")],
    table: Annotated[
        bool, typer.Option("--table", help="Print a table of every key instead.")
    ] = False,
) -> int:
    """Print the JSON Schema of sweeps or site files, by which editors complete and check them.

    The first line of a file names it: # yaml-language-server: $schema=sweep.schema.json
    """
    import json

    from jobs.slurm.read_site_file import site_keys, site_schema
    from jobs.sweep.sweep_schema import sweep_keys, sweep_schema

    if table:
        from rich.console import Console
        from rich.markdown import Markdown

        blocks = sweep_keys() if what == Written.sweep else site_keys()
        Console().print(Markdown("\n\n".join(blocks)))
        return EXIT_DONE
    found = sweep_schema() if what == Written.sweep else site_schema()
    print(json.dumps(found, indent=1, ensure_ascii=False))
    return EXIT_DONE
