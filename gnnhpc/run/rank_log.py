"""Where one rank prints: to the launcher, and later to its own log in the attempt's folder."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError


class RankLog:
    """Redirects this process's output; errors still reach the launcher's stderr too."""

    def __init__(self) -> None:
        self._launcher_stderr: int | None = None

    def redirect(self, path: Path) -> None:
        """Append stdout and stderr to `path` from now on; GnnhpcError if it cannot be written."""
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise GnnhpcError(f"{path}: cannot be written ({error.strerror})") from None
        self._launcher_stderr = os.dup(2)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)

    def print_error(self, line: str) -> None:
        # The log may be on the disk that is full.
        with contextlib.suppress(OSError):
            print(line, file=sys.stderr, flush=True)
        if self._launcher_stderr is not None:
            os.write(self._launcher_stderr, (line + "\n").encode())
