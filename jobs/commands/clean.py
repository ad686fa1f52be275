"""`clean`: what nobody needs any more."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, InputError
from jobs.commands.flags import Run

EPILOG = "Example: python -m jobs clean runs/quickstart"


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
