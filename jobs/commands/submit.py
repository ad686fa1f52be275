"""`submit`: a sweep's run folder and its job arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnnhpc.core.errors import EXIT_DONE, EXIT_INPUT, InputError
from jobs.commands.flags import (
    After,
    Cluster,
    ClusterFlag,
    Live,
    Paired,
    SiteFile,
    SiteName,
    SlurmOptions,
    Wait,
)
from jobs.commands.told import print_changes, print_note, print_submitted, progress

if TYPE_CHECKING:
    from jobs.cluster.launch import Launch
    from jobs.spec.planning import Plan

EPILOG = (
    "Examples:\n\n"
    "python -m jobs submit quickstart --cluster local --wait\n\n"
    "python -m jobs submit raffi-vig --site my-cluster --data-root /data\n\n"
    "python -m jobs submit spec.yaml --set train_steps=5 --set layouts=\\[seq,pp2] --dry-run\n\n"
    "python -m jobs submit quickstart --precision 0.02"
)


def submit(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="A sweep spec, or quickstart.")],
    cluster: ClusterFlag = Cluster.slurm,
    runs: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of the run; else the spec's.")] = None,
    site: SiteName = None,
    site_file: SiteFile = None,
    data_root: Annotated[
        Path | None,
        typer.Option(
            help="Where data sets lie; else the spec's, $GNNHPC_DATA, ./data, the user's cache."
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Override in the defaults and every grid: train_steps=5, layouts=\\[seq,pp2], "
            "data.train=100, grids.0.repeats=2. May be given again.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show arrays, cells and scripts; write nothing.")
    ] = False,
    wait: Wait = False,
    extend: Annotated[
        bool, typer.Option("--extend", help="Add the cells that the run does not have yet.")
    ] = False,
    paired: Paired = False,
    live: Live = False,
    slurm: SlurmOptions = None,
    after: After = None,
    test_only: Annotated[
        bool,
        typer.Option(
            "--test-only", help="Ask Slurm when each array would start; write and submit nothing."
        ),
    ] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report",
            help="Write the report once all cells have ended: one more job; here with --wait of a "
            "local run.",
        ),
    ] = False,
    precision: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="Say how many repeats intervals of this half-width need, such as 0.02 of the "
            "value, as the runs that are there tell; submits only with --extend.",
        ),
    ] = None,
) -> int:
    """Expand a sweep, write its run folder and submit one job array a model and layout.

    Returns at once with the job ids. A mistake in the spec is reported before anything is written.
    The run folder keeps the code of this moment, and the jobs run that.
    """
    from jobs.actions.submit import choose_launch, has_run, is_paired, run_folder_path
    from jobs.actions.submit import submit as submit_plan
    from jobs.cluster.sbatch_options import parse_options
    from jobs.cluster.site_files import load_site
    from jobs.spec.planning import plan

    planned = plan(spec, set_ or [], name=name, root=data_root, check=not dry_run)
    for note in planned.notes():
        print_note(note)
    run = run_folder_path(planned, runs)
    if precision is not None and _tell_precision(run, precision) and not (extend or dry_run):
        return EXIT_DONE
    extends = extend and has_run(run)
    told = None if extends and not (site or site_file) else load_site(site_file, site)
    settings = parse_options(slurm or [])
    if dry_run or test_only:
        how = choose_launch(run, cluster.value, told, settings, extends=extends, live=live)
        how.tell(print_note)
        paired = is_paired(run, extends=extends, asked=paired)
        if test_only:
            return _try_arrays(planned, run, how.launch, cluster, after or [], paired=paired)
        from jobs.actions.after import check_after
        from jobs.actions.reporting import check_reporting
        from jobs.printing.plan_text import print_plan

        check_after(after or [], cluster.value)
        if report:
            check_reporting(cluster.value, wait=wait)
        print_plan(planned, run, how.launch, paired=paired)
        return EXIT_DONE
    done = submit_plan(
        planned,
        cluster=cluster.value,
        runs=runs,
        site=told,
        settings=settings,
        after=after or [],
        extend_run=extend,
        paired=paired,
        live=live,
        wait=wait,
        reporting=report,
        report=progress(wait),
        watch=print_changes() if wait else None,
        tell=print_note,
    )
    return print_submitted(done)


def _try_arrays(
    planned: Plan,
    run: Path,
    launch: Launch,
    cluster: Cluster,
    after: Sequence[str],
    *,
    paired: bool,
) -> int:
    """Print what Slurm says of each array; status 2 if it refuses one."""
    from jobs.actions.submit import check_cluster
    from jobs.actions.try_arrays import try_arrays
    from jobs.printing.plan_text import print_answers

    if cluster is not Cluster.slurm:
        raise InputError("--test-only", None, f"--cluster {cluster.value}", "--cluster slurm")
    check_cluster(cluster.value, run)
    answers = try_arrays(planned, run, launch, after, print_note, paired=paired)
    print_answers(answers)
    return EXIT_INPUT if any(answer.refused for answer in answers) else EXIT_DONE


def _tell_precision(run: Path, precision: float) -> bool:
    """Print how many repeats a precision needs; False where no run is there yet to tell."""
    from gnnhpc.records.run_paths import RunPaths
    from jobs.printing.precision_text import print_precision
    from jobs.state.needed_repeats import needed_repeats

    if not 0.0 < precision < 1.0:
        raise InputError("--precision", None, precision, "a share of the value, such as 0.02")
    paths = RunPaths(run)
    if not paths.manifest.is_file():
        print_note(f"no run {run} yet, whose repeats would tell what {precision:.2%} needs")
        return False
    print_precision(needed_repeats(paths, precision), precision)
    return True
