"""`rerun` and `cancel`: cells of a run that is there."""

from __future__ import annotations

from typing import Annotated

import typer

from gnnhpc.core.errors import EXIT_DONE
from jobs.commands.flags import (
    After,
    ArrayName,
    Cluster,
    Live,
    Run,
    SiteFile,
    SiteName,
    SlurmOptions,
    Wait,
)
from jobs.commands.told import print_changes, print_note, print_submitted, progress

EPILOG = (
    "Examples:\n\n"
    "python -m jobs rerun runs/quickstart --failed\n\n"
    "python -m jobs rerun runs/quickstart --array vig-pp2 --index 3,5-7"
)


def rerun(
    run: Run,
    array: ArrayName = None,
    index: Annotated[
        str | None, typer.Option(metavar="3,5-7", help="Cells of the array by index.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Cells that ended without a result.")
    ] = False,
    missing: Annotated[
        bool, typer.Option("--missing", help="Those, and cells that were never tried.")
    ] = False,
    flagged: Annotated[bool, typer.Option("--flagged", help="Cells done with a flag.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Unknown cells too, which may then run twice.")
    ] = False,
    cluster: Annotated[
        Cluster | None,
        typer.Option(help="Slurm, or this machine; where the run was submitted, unless told."),
    ] = None,
    site: SiteName = None,
    site_file: SiteFile = None,
    time_: Annotated[
        str | None, typer.Option("--time", metavar="2:00:00", help="Time limit of a cell.")
    ] = None,
    mem: Annotated[str | None, typer.Option(metavar="64G", help="Memory a node.")] = None,
    exclude: Annotated[
        str | None, typer.Option(metavar="NODES", help="Nodes that no cell gets, such as n3,n7.")
    ] = None,
    exclude_failed: Annotated[
        bool,
        typer.Option(
            "--exclude-failed", help="Nodes too where a rank of this run was lost or hung."
        ),
    ] = False,
    slurm: SlurmOptions = None,
    after: After = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="The whole blocks that hold these cells.")
    ] = False,
    live: Live = False,
    wait: Wait = False,
) -> int:
    """Run cells again, each as a new attempt; nothing is overwritten.

    They run the code that the run keeps, where and with the site that it was
    submitted with. Cells that run or wait already are left alone; --index refuses
    them. So are unknown ones, without --force.
    """
    from jobs.actions.rerun import rerun as rerun_cells
    from jobs.cluster.sbatch_options import parse_options
    from jobs.cluster.site_files import load_site

    flags = {"time": time_, "mem": mem, "exclude": exclude}
    given = [f"{name}={value}" for name, value in flags.items() if value is not None]
    done = rerun_cells(
        run,
        array=array,
        index=index,
        failed=failed,
        missing=missing,
        flagged=flagged,
        force=force,
        cluster=cluster.value if cluster else None,
        site=load_site(site_file, site) if site or site_file else None,
        settings=parse_options([*(slurm or []), *given]),
        exclude_failed=exclude_failed,
        after=after or [],
        paired=paired,
        live=live,
        wait=wait,
        report=progress(wait),
        watch=print_changes() if wait else None,
        tell=print_note,
    )
    return print_submitted(done)


def cancel(
    run: Run,
    array: ArrayName = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="All recorded jobs, if Slurm does not say which have ended."),
    ] = False,
) -> int:
    """Cancel a run's jobs in Slurm, or stop its local supervisor; results stay."""
    from jobs.actions.cancel import cancel as cancel_run

    ended = cancel_run(run, array, force=force)
    print("\n".join(f"cancelled {what}" for what in ended) or "no job to cancel")
    return EXIT_DONE
