"""The commands of `python -m jobs`; each imports what it needs when it is called."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gnnhpc.core.cli_support import add_version, as_typed, run_app_for_reader
from gnnhpc.core.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_UNFINISHED,
    InputError,
)

if TYPE_CHECKING:
    from jobs.actions.local_cells import ProgressListener
    from jobs.actions.submit import Submission
    from jobs.cluster.launch import Launch
    from jobs.spec.planning import Plan
    from jobs.state.run_cost import RunCost


class Cluster(StrEnum):
    slurm = "slurm"
    local = "local"


class Written(StrEnum):
    sweep = "sweep"
    site = "site"


app = typer.Typer(
    help="Submit sweeps as Slurm job arrays, show their status, rerun or cancel cells.\n\n"
    "A sweep spec becomes a run folder (manifest, batch scripts, records) and one job array a "
    "model and layout. Exit status: 0 done, 1 something ran and failed, 2 the input was wrong.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_version(app)
site_app = typer.Typer(help="Write and check site settings.", no_args_is_help=True)
app.add_typer(site_app, name="site")

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


@app.command(
    epilog="Examples:\n\n"
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
        _print_note(note)
    run = run_folder_path(planned, runs)
    if precision is not None and _tell_precision(run, precision) and not (extend or dry_run):
        return EXIT_DONE
    extends = extend and has_run(run)
    told = None if extends and not (site or site_file) else load_site(site_file, site)
    settings = parse_options(slurm or [])
    if dry_run or test_only:
        how = choose_launch(run, cluster.value, told, settings, extends=extends, live=live)
        how.tell(_print_note)
        paired = is_paired(run, extends=extends, asked=paired)
        if test_only:
            return _try_arrays(planned, run, how.launch, cluster, after or [], paired=paired)
        from jobs.printing.plan_text import print_plan

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
        report=_progress(wait),
        watch=_watch() if wait else None,
        tell=_print_note,
    )
    return _print_submission(done)


@app.command(
    epilog="States: done, flagged (done, but an audit found it invalid), running, pending, "
    "unknown (may run or wait, and Slurm does not say), failed, timed out, preempted, out of "
    "memory, cancelled, interrupted, lost (neither process nor result), missing (never tried).\n\n"
    "Exit status: 0 when every cell is done and valid, 3 while cells run, wait or may do so, 1 "
    "when none does and one is not done or not valid, 2 for wrong input.\n\n"
    "Example: python -m jobs status runs/quickstart --cells"
)
def status(
    run: Run,
    json_: Annotated[bool, typer.Option("--json", help="Everything, for scripts.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again every ten seconds until all is done.")
    ] = False,
    cells: Annotated[bool, typer.Option("--cells", help="A line a cell.")] = False,
    cost: Annotated[
        bool,
        typer.Option(
            "--cost", help="Core-hours and CPU efficiency so far, and of the rest as predicted."
        ),
    ] = False,
) -> int:
    """Show the state of every cell, from its folder and from Slurm's queue.

    Slurm is asked at most once in ten seconds. Works without Slurm, without sacct and on a copied
    folder. --cost asks sacct too, and keeps its answer in the run folder for reports.
    """
    from jobs.state.run_status import status as status_of

    while True:
        current = status_of(run)
        spent = _cost(current.run) if cost else None
        if json_:
            from jobs.printing.status_table import status_json

            print(status_json(current, spent))
        else:
            from jobs.printing.status_table import print_status

            print_status(current, cells=cells, cost=spent)
        if not (watch and current.live):
            break
        sys.stdout.flush()
        time.sleep(10)
    if current.live:
        return EXIT_UNFINISHED
    return EXIT_DONE if current.complete else EXIT_FAILED


@app.command("list", epilog="Example: python -m jobs list --runs /scratch/me/runs")
def list_runs(
    runs: Annotated[Path, typer.Option(help="The folder of the runs.")] = Path("runs"),
    json_: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> int:
    """List the runs of a folder, newest first: age, size on disk, cells and their states.

    Damaged folders are named. Slurm is asked once for all, and only if cells are unfinished.
    """
    from gnnhpc.core.user_paths import expand_user
    from jobs.printing.runs_table import runs_json, runs_lines
    from jobs.state.known_runs import known_runs

    found = known_runs(expand_user(runs, "--runs"))
    if json_:
        print(runs_json(found))
        return EXIT_DONE
    print("\n".join(runs_lines(found)) if found else f"no run in {runs}")
    for told in {
        one.status.slurm for one in found if one.status and "unknown" in one.status.counts()
    }:
        _print_note(f"unknown cells may run or wait: {told}")
    return EXIT_DONE


@app.command(
    epilog="Examples:\n\n"
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
    cluster: ClusterFlag = Cluster.slurm,
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

    They run the code that the run keeps, with the site that it was submitted with. Cells that run
    or wait already are left alone; --index refuses them. So are unknown ones, without --force.
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
        cluster=cluster.value,
        site=load_site(site_file, site) if site or site_file else None,
        settings=parse_options([*(slurm or []), *given]),
        exclude_failed=exclude_failed,
        after=after or [],
        paired=paired,
        live=live,
        wait=wait,
        report=_progress(wait),
        watch=_watch() if wait else None,
        tell=_print_note,
    )
    return _print_submission(done)


@app.command()
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


@app.command(
    epilog="Examples:\n\n"
    "python -m jobs logs runs/quickstart vig-pp2:3 --rank 1\n\n"
    "python -m jobs logs runs/quickstart --array vig-pp2 --index 3 --follow"
)
def logs(
    run: Run,
    cell: Annotated[
        str | None, typer.Argument(help="A cell's id, the start of one, or array:index.")
    ] = None,
    array: ArrayName = None,
    index: Annotated[int | None, typer.Option(help="The cell of the array by index.")] = None,
    rank: Annotated[
        int | None,
        typer.Option(help="Which rank; else the first that failed, or 0. With --follow: else all."),
    ] = None,
    attempt: Annotated[int | None, typer.Option(help="Which attempt; else the newest.")] = None,
    lines: Annotated[
        int | None,
        typer.Option(
            min=0, help="The last lines alone; with --follow those before the new, or 10."
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            help="Go on with new lines of the newest attempt's ranks and of its job, as they come, "
            "until the cell has ended.",
        ),
    ] = False,
) -> int:
    """Print the log of one rank of a cell; its path goes to stderr.

    With --follow the status is 0 when the cell has ended done and valid, else 1.
    """
    from jobs.folder.growing_logs import offset_of_last_lines
    from jobs.folder.log_files import find_log

    if (cell is None) == (array is None and index is None):
        raise InputError("logs", None, "no cell, or two", "CELL, or --array with --index")
    named = cell if cell is not None else f"{array or ''}:{'' if index is None else index}"
    if follow:
        return _follow(run, named, rank, attempt, 10 if lines is None else lines)
    path = find_log(run, named, rank, attempt)
    print(path, file=sys.stderr)
    with path.open(encoding="utf-8", errors="replace") as stream:
        stream.seek(0 if lines is None else offset_of_last_lines(path, lines))
        for line in stream:
            sys.stdout.write(line)
    return EXIT_DONE


@site_app.command("init", epilog="Example: python -m jobs site init --out site.yaml")
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


@app.command(epilog="Example: python -m jobs clean runs/quickstart")
def clean(
    run: Run, yes: Annotated[bool, typer.Option("--yes", help="Remove it without asking.")] = False
) -> int:
    """Remove what neither a report, check, rerun nor resume needs, once nothing runs; asks first.

    That is checkpoints of done cells, records of invalid attempts that a valid one replaced,
    submitit's folder and temporary files. Results, failures, logs, provenance and code stay, and
    so do all valid attempts and those that they went on from.
    """
    from jobs.actions.clean import clean as clean_run
    from jobs.actions.clean import what_to_clean
    from jobs.folder.disk_use import disk_use
    from jobs.printing.clean_text import clean_lines, together

    found = what_to_clean(run)
    if not found:
        print(f"nothing to remove of {run}")
        return EXIT_DONE
    print("\n".join(clean_lines(found, run, disk_use(run))))
    if not yes and not sys.stdin.isatty():
        raise InputError("clean", None, "no terminal to ask on", "--yes")
    if not yes and input("remove it? [y/N] ").strip().lower() not in ("y", "yes"):
        print("nothing removed")
        return EXIT_FAILED
    removed = clean_run(run, found)
    print(f"removed {together(removed)}")
    return EXIT_DONE


@app.command(epilog="Example: python -m jobs schema sweep > sweep.schema.json")
def schema(what: Annotated[Written, typer.Argument(help="Of sweeps, or of site files.")]) -> int:
    """Print the JSON Schema of sweeps or site files, by which editors complete and check them.

    The first line of a file names it: # yaml-language-server: $schema=sweep.schema.json
    """
    import json

    from jobs.printing.json_schema import site_schema, sweep_schema

    found = sweep_schema() if what == Written.sweep else site_schema()
    print(json.dumps(found, indent=1, ensure_ascii=False))
    return EXIT_DONE


@site_app.command("check")
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
    answers = try_arrays(planned, run, launch, after, _print_note, paired=paired)
    print_answers(answers)
    return EXIT_INPUT if any(answer.refused for answer in answers) else EXIT_DONE


def _cost(run: Path) -> RunCost:
    from gnnhpc.records.run_paths import RunPaths
    from jobs.state.run_cost import run_cost

    return run_cost(RunPaths(run))


def _follow(run: Path, cell: str, rank: int | None, attempt: int | None, lines: int) -> int:
    from jobs.folder.attempt_files import read_manifest_entries
    from jobs.folder.locked_files import open_run
    from jobs.folder.log_files import check_rank, find_cell
    from jobs.state.follow_cell import FollowedCell, follow_cell

    if attempt is not None:
        raise InputError("--attempt", None, "--follow beside it", "one of the two")
    paths = open_run(run)
    entry = find_cell(read_manifest_entries(paths.manifest), cell)
    check_rank(entry, rank)
    try:
        ended = follow_cell(FollowedCell(paths, entry, rank, lines), _print_now, _print_note)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE if ended.state == "done" else EXIT_FAILED


def _print_now(lines: list[str]) -> None:
    if lines:
        print("\n".join(lines), flush=True)


def _tell_precision(run: Path, precision: float) -> bool:
    """Print how many repeats a precision needs; False where no run is there yet to tell."""
    from gnnhpc.records.run_paths import RunPaths
    from jobs.printing.precision_text import print_precision
    from jobs.state.needed_repeats import needed_repeats

    if not 0.0 < precision < 1.0:
        raise InputError("--precision", None, precision, "a share of the value, such as 0.02")
    paths = RunPaths(run)
    if not paths.manifest.is_file():
        _print_note(f"no run {run} yet, whose repeats would tell what {precision:.2%} needs")
        return False
    print_precision(needed_repeats(paths, precision), precision)
    return True


def _print_note(note: str) -> None:
    print(f"note: {note}", file=sys.stderr)


def _progress(wait: bool) -> ProgressListener | None:
    if not wait:
        return None
    from jobs.actions.local_progress import progress_listener

    return progress_listener()


def _watch() -> Any:
    from jobs.printing.status_table import status_line

    printed: list[str] = []

    def print_change(current: Any) -> None:
        line = status_line(current).rpartition(" (")[0]
        if printed[-1:] != [line]:
            printed.append(line)
            print(line, flush=True)

    return print_change


def _print_submission(done: Submission) -> int:
    """Print what was submitted; returns the exit status."""
    from jobs.printing.plan_text import print_submission

    print_submission(done)
    return EXIT_FAILED if done.failed else EXIT_DONE


def main(arguments: list[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit status 2."""
    return run_app_for_reader(app, "python -m jobs", arguments)
