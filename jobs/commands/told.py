"""What several commands print: notes, progress, what was submitted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED

if TYPE_CHECKING:
    from jobs.actions.local_cells import ProgressListener
    from jobs.actions.submit import Submission


def print_note(note: str) -> None:
    """To stderr, as it is no result."""
    print(f"note: {note}", file=sys.stderr)


def progress(wait: bool) -> ProgressListener | None:
    """Progress of local cells, where they are waited for."""
    if not wait:
        return None
    from jobs.actions.local_progress import progress_listener

    return progress_listener()


def print_changes() -> Any:
    """A listener that prints a run's status where it has changed."""
    from jobs.printing.status_table import status_line

    printed: list[str] = []

    def print_change(current: Any) -> None:
        line = status_line(current).rpartition(" (")[0]
        if printed[-1:] != [line]:
            printed.append(line)
            print(line, flush=True)

    return print_change


def print_submitted(done: Submission) -> int:
    """Print what was submitted; returns the exit status."""
    from jobs.printing.plan_text import print_submission

    print_submission(done)
    return EXIT_FAILED if done.failed else EXIT_DONE
