"""`status`, `list`, `logs` and `clean`: commands about runs that exist."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_UNFINISHED,
)
from jobs.cli.typer_app import Run, app


@app.command(
    epilog="States: done, invalid (done, but a check found an error), running, pending, "
    "unknown (may run or wait, and Slurm does not say), failed, timed out, preempted, out of "
    "memory, cancelled, interrupted, lost (neither process nor result), missing (never started)."
    "\n\nExit status: 0 when every cell is done and valid, 3 while cells run, wait or may do so, 1 "
    "when none does and one is not done or not valid, 2 for wrong input.\n\n"
    "Example: gnnhpc status runs/quickstart --cells"
)
def status(
    run: Run,
    json_: Annotated[bool, typer.Option("--json", help="Print everything, for scripts.")] = False,
    cells: Annotated[bool, typer.Option("--cells", help="Print a line for each cell.")] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="Print the core-hours used, as sacct says.")
    ] = False,
) -> int:
    """Show the state of every cell, from its folder and from Slurm's queue.

    Slurm is asked at most once in ten seconds. It works without Slurm, without sacct and on a
    copied folder.
    """
    from jobs.cli.terminal_tables import print_status, status_json
    from jobs.run.cost import run_cost
    from jobs.run.run_state import read_run
    from jobs.run.status import status as status_of

    state = read_run(run)
    current = status_of(state, kept=True)
    spent = run_cost(state) if cost else None
    if json_:
        print(status_json(current, spent))
    else:
        print_status(current, cells=cells, cost=spent)
    if current.live:
        return EXIT_UNFINISHED
    return EXIT_DONE if current.complete else EXIT_FAILED


@app.command("list", epilog="Example: gnnhpc list --runs /scratch/me/runs")
def list_runs(
    runs: Annotated[Path, typer.Option(help="The folder of the runs.")] = Path("runs"),
) -> int:
    """List the runs of a folder, newest first: their cells and states; damage is named."""
    from gnnhpc.core.settings import expand_user
    from jobs.cli.terminal_tables import print_runs
    from jobs.run.status import known_runs

    print_runs(known_runs(expand_user(runs, "--runs")))
    return EXIT_DONE


@app.command(
    epilog="Examples:\n\n"
    "gnnhpc logs runs/quickstart vig-pp2:3 --rank 1\n\n"
    "gnnhpc logs runs/quickstart vig-pp2:3 --follow"
)
def logs(
    run: Run,
    cell: Annotated[str, typer.Argument(metavar="CELL", help="A cell's id or array:index.")],
    rank: Annotated[
        int | None,
        typer.Option(
            help="The rank; by default the first that failed, or 0, and with --follow all ranks."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Print new log lines until the cell ends.")
    ] = False,
) -> int:
    """Print the newest log of one rank of a cell; its path goes to stderr.

    With --follow the status is 0 when the cell has ended done and valid, else 1.
    """
    from jobs.run import logs as cell_logs

    paths, found = cell_logs.open_cell(run, cell, rank)
    if follow:
        try:
            ended = cell_logs.follow(paths, found, rank, partial(print, flush=True))
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED
        return EXIT_DONE if ended.state == "done" else EXIT_FAILED
    path = cell_logs.find_log(paths, found, rank)
    print(path, file=sys.stderr)
    sys.stdout.write(path.read_text(encoding="utf-8", errors="replace"))
    return EXIT_DONE


@app.command(epilog="Example: gnnhpc clean runs/quickstart --yes")
def clean(
    run: Run,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them.")] = False,
) -> int:
    """List the checkpoints of done cells, which nothing needs after the run, or remove them.

    Results, records and logs stay, and so do checkpoints that a rerun would resume from.
    """
    from jobs.run.clean import clean as clean_run
    from jobs.run.clean import find_removable

    found = clean_run(run) if yes else find_removable(run)
    print("\n".join(map(str, found)) or f"nothing to remove in {run}")
    if found:
        print("removed" if yes else "--yes removes them")
    return EXIT_DONE
