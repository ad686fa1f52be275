"""`submit`, `rerun` and `cancel`: commands that change which jobs there are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED
from jobs.cli.typer_app import (
    After,
    ArrayName,
    Cluster,
    Live,
    Paired,
    Run,
    SiteFile,
    SiteName,
    SlurmOptions,
    Wait,
    app,
)


@app.command(
    epilog="Examples:\n\n"
    "gnnhpc submit raffi-vig --paired --site my-cluster --data-root /data\n\n"
    "gnnhpc submit quickstart --cluster local --wait\n\n"
    "gnnhpc submit spec.yaml --set train_steps=5 --set layouts=\\[seq,pp2] --dry-run"
)
def submit(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="A sweep spec, or quickstart.")],
    cluster: Annotated[
        Cluster, typer.Option(help="Where the cells run: Slurm, or this machine.")
    ] = Cluster.slurm,
    runs: Annotated[Path, typer.Option(help="The folder of the run folders.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run, else the spec's.")] = None,
    site: SiteName = None,
    site_file: SiteFile = None,
    data_root: Annotated[
        Path | None,
        typer.Option(
            help="The folder of the data sets; by default the spec's, $GNNHPC_DATA, ./data or the "
            "user's cache."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a value in the defaults and every grid: train_steps=5, layouts=\\[seq,pp2], "
            "data.train=100, grids.0.repeats=2; may be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show one script, cells and arrays; write nothing."),
    ] = False,
    wait: Wait = False,
    paired: Paired = False,
    live: Live = False,
    slurm: SlurmOptions = None,
    after: After = None,
) -> int:
    """Expand a sweep, write its run folder and submit one job array for each model and layout.

    Returns at once with the job ids; a local run returns when its cells have ended. A mistake in
    the spec is reported before anything is written. The run folder keeps the current code, and the
    jobs run that copy.
    """
    from jobs.cli.terminal_tables import print_dry_run, print_submitted
    from jobs.slurm.read_site_file import load_site
    from jobs.slurm.user_sbatch_options import parse_options
    from jobs.submit import submit as submitting
    from jobs.submit.submission import Options
    from jobs.sweep.plan import plan

    planned = plan(spec, set_ or [], name=name, root=data_root, check=not dry_run)
    options = Options(
        cluster=cluster.value,
        site=load_site(site_file, site),
        settings=parse_options(slurm or []),
        after=after or (),
        paired=paired,
        live=live,
        wait=wait,
    )
    if dry_run:
        print_dry_run(submitting.prepare_submit(planned, options, runs=runs))
        return EXIT_DONE
    done = submitting.submit(planned, options, runs=runs)
    print_submitted(done)
    return EXIT_FAILED if done.failed else EXIT_DONE


@app.command(
    epilog="Examples:\n\n"
    "gnnhpc rerun runs/quickstart --failed\n\n"
    "gnnhpc rerun runs/quickstart --array vig-pp2 --index 3,5-7\n\n"
    "gnnhpc rerun runs/quickstart --failed --mem 64G --slurm time=4:00:00 --slurm exclude=n3"
)
def rerun(
    run: Run,
    array: ArrayName = None,
    index: Annotated[
        str | None, typer.Option(metavar="3,5-7", help="Select cells of the array by index.")
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Select cells that ended without a result.")
    ] = False,
    missing: Annotated[
        bool,
        typer.Option("--missing", help="Select failed cells and cells that never started."),
    ] = False,
    flagged: Annotated[
        bool, typer.Option("--flagged", help="Select cells that are done with a flag.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also select cells whose state Slurm did not report; they may run twice.",
        ),
    ] = False,
    site: SiteName = None,
    site_file: SiteFile = None,
    mem: Annotated[str | None, typer.Option(metavar="64G", help="Memory of a node.")] = None,
    slurm: SlurmOptions = None,
    after: After = None,
    paired: Annotated[
        bool, typer.Option("--paired", help="Run the whole blocks that hold these cells.")
    ] = False,
    live: Live = False,
    wait: Wait = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would run again; submit nothing.")
    ] = False,
) -> int:
    """Run cells again, each as a new attempt; nothing is overwritten.

    They run the code that the run folder keeps, where and with the site that the run was submitted
    with. Cells that run or wait already are left alone, and --index refuses them; so are unknown
    cells without --force.
    """
    from jobs.cli.terminal_tables import print_dry_run, print_submitted
    from jobs.slurm.read_site_file import load_site
    from jobs.slurm.user_sbatch_options import parse_options
    from jobs.submit import rerun as rerunning
    from jobs.submit.submission import Options

    selection = rerunning.Selection(array, index, failed, missing, flagged, force)
    options = Options(
        site=load_site(site_file, site) if site or site_file else None,
        settings=parse_options([*(slurm or []), *([f"mem={mem}"] if mem else [])]),
        after=after or (),
        paired=paired,
        live=live,
        wait=wait,
    )
    if dry_run:
        print_dry_run(rerunning.prepare_rerun(run, selection, options))
        return EXIT_DONE
    done = rerunning.rerun(run, selection, options)
    print_submitted(done)
    return EXIT_FAILED if done.failed else EXIT_DONE


@app.command()
def cancel(
    run: Run,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Cancel all recorded jobs if Slurm does not say which have ended."
        ),
    ] = False,
) -> int:
    """Cancel a run's jobs in Slurm, or stop its local process; results stay."""
    from jobs.submit.submit import cancel as cancel_run

    ended = cancel_run(run, force=force)
    print("\n".join(f"cancelled {what}" for what in ended) or "no job to cancel")
    return EXIT_DONE
