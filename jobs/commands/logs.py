"""`logs`: what the ranks of a cell have printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, InputError
from jobs.commands.flags import ArrayName, Run
from jobs.commands.told import print_note

EPILOG = (
    "Examples:\n\n"
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
        ended = follow_cell(FollowedCell(paths, entry, rank, lines), _print_now, print_note)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_DONE if ended.state == "done" else EXIT_FAILED


def _print_now(lines: list[str]) -> None:
    if lines:
        print("\n".join(lines), flush=True)
