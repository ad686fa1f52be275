"""Arguments and options that several commands take."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Cluster(StrEnum):
    slurm = "slurm"
    local = "local"


Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/quickstart.")]
ClusterFlag = Annotated[
    Cluster, typer.Option(help="Slurm, or this machine through submitit's local executor.")
]
SiteName = Annotated[str | None, typer.Option("--site", help="A site of the site file.")]
SiteFile = Annotated[
    Path | None,
    typer.Option(
        help="Site settings, over those of ./site.yaml, ~/.config/gnnhpc/site.yaml and "
        "/etc/xdg/gnnhpc/site.yaml; else $GNNHPC_SITE_FILE."
    ),
]
SlurmOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--slurm",
        metavar="NAME=VALUE",
        help="An option of sbatch in place of the site's: reservation=x, time=30, exclusive. "
        "May be given again.",
    ),
]
After = Annotated[
    list[str] | None,
    typer.Option(
        metavar="RUN|JOB", help="Begin when this run's jobs, or this job, have ended. Again too."
    ),
]
Live = Annotated[
    bool,
    typer.Option("--live", help="Run this checkout's code, not that which the run keeps."),
]
Paired = Annotated[
    bool,
    typer.Option(
        "--paired",
        help="In blocks: one job measures all cells of a model and repeat on the same nodes, one "
        "after the other, in an order drawn for it.",
    ),
]
Wait = Annotated[bool, typer.Option("--wait", help="Return when every cell has ended.")]
ArrayName = Annotated[str | None, typer.Option("--array", help="One array, such as vig-pp2.")]
