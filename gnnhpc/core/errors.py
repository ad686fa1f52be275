"""Errors that a user can fix, each one line; anything else is a bug and keeps its traceback.

Notes go to stderr too, since they are no results.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_UNFINISHED = 3
EXIT_INTERRUPTED = 130
"""The status of a command that SIGINT ended, as in a shell."""


class GnnhpcError(Exception):
    """Something ran and failed; the command ends with status 1."""


class InputError(GnnhpcError):
    """The input was wrong; the command ends with status 2 and has written nothing.

    `where` is a file, flag or variable, `key` the place inside it, `found` what is there, and
    `allowed` what may be there.
    """

    def __init__(
        self,
        where: object,
        key: str | None = None,
        found: object = None,
        allowed: str | None = None,
    ) -> None:
        self.where = str(where)
        self.key = key
        self.found = found
        self.allowed = allowed
        line = self.where
        if key:
            line += f": {key}"
        if found is not None:
            line += f": found {found}"
        if allowed:
            line += f"; allowed: {allowed}"
        super().__init__(" ".join(line.split()))


def print_note(note: str) -> None:
    """Print what a user should know."""
    print(f"note: {note}", file=sys.stderr, flush=True)


def report_errors(command: Callable[P, int]) -> Callable[P, int]:
    """Turn gnnhpc's errors into one line on stderr and an exit status."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return EXIT_INPUT
        except GnnhpcError as error:
            print(f"failed: {error}", file=sys.stderr)
            return EXIT_FAILED

    return wrapped
