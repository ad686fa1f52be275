"""`status` and `list`: how far runs are."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_UNFINISHED
from jobs.commands.flags import Run
from jobs.commands.told import print_note

if TYPE_CHECKING:
    from jobs.state.run_cost import RunCost

EPILOG = (
    "States: done, flagged (done, but an audit found it invalid), running, pending, "
    "unknown (may run or wait, and Slurm does not say), failed, timed out, preempted, out of "
    "memory, cancelled, interrupted, lost (neither process nor result), missing (never tried).\n\n"
    "Exit status: 0 when every cell is done and valid, 3 while cells run, wait or may do so, 1 "
    "when none does and one is not done or not valid, 2 for wrong input.\n\n"
    "Example: python -m jobs status runs/quickstart --cells"
)
LIST_EPILOG = "Example: python -m jobs list --runs /scratch/me/runs"


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
    patience: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="SECONDS",
            help="With --cost: ask sacct again for so long until it knows of all that has ended.",
        ),
    ] = 0.0,
) -> int:
    """Show the state of every cell, from its folder and from Slurm's queue.

    Slurm is asked at most once in ten seconds. Works without Slurm, without sacct and on a copied
    folder. --cost asks sacct too, and keeps its answer in the run folder for reports.
    """
    from jobs.state.run_status import status as status_of

    while True:
        current = status_of(run)
        spent = _cost(current.run, patience) if cost else None
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
        print_note(f"unknown cells may run or wait: {told}")
    return EXIT_DONE


def _cost(run: Path, patience_s: float) -> RunCost:
    from gnnhpc.records.run_paths import RunPaths
    from jobs.state.run_cost import run_cost

    return run_cost(RunPaths(run), patience_s)
