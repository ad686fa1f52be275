"""The app of `python -m jobs`, and the arguments and options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.cli_options import make_app, run_app

app = make_app(
    "Submit sweeps as Slurm job arrays, show their status, rerun or cancel cells.\n\n"
    "A sweep spec becomes a run folder (manifest, batch scripts, records) and one job array for "
    "each model and layout.\n\n"
    "Exit status: 0 done, 1 something ran and failed, 2 the input was wrong."
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit status 2."""
    return run_app(app, "python -m jobs", arguments)


class Cluster(StrEnum):
    slurm = "slurm"
    local = "local"


Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/quickstart.")]
SiteName = Annotated[str | None, typer.Option("--site", help="A site of the site file.")]
SiteFile = Annotated[
    Path | None,
    typer.Option(
        help="Site settings; by default $GNNHPC_SITE_FILE, ./site.yaml or "
        "~/.config/gnnhpc/site.yaml."
    ),
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="NAME=VALUE",
        help="Set an option of sbatch instead of the site's, such as time=4:00:00, mem=64G, "
        "exclude=n3 or exclusive; may be repeated.",
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(metavar="RUN|JOB", help="Start after this run or job has ended; may be repeated."),
]
Live = Annotated[
    bool,
    typer.Option("--live", help="Run the current checkout instead of the copy in the run folder."),
]
Paired = Annotated[
    bool,
    typer.Option(
        "--paired",
        help="Run all cells of a model and repeat in one job, on the same nodes, in random order.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when every cell has ended.")]
ArrayName = Annotated[str | None, typer.Option("--array", help="One array, such as vig-pp2.")]
