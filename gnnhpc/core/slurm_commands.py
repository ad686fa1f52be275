"""Asks a program of Slurm's for what it knows, where it may be missing or not answer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping

TIMEOUT_S = 15.0


def ask(*command: str, timeout_s: float = TIMEOUT_S, without: str | None = None) -> str | None:
    """What a command prints; None where it is missing, fails or does not answer in time.

    `without`: the start of variables that it does not get, such as SQUEUE_, which would change what
    a user's own defaults let it answer.
    """
    if shutil.which(command[0]) is None:
        return None
    try:
        return run_slurm(*command, timeout_s=timeout_s, without=without)
    except (OSError, subprocess.SubprocessError):
        return None


def run_slurm(
    *command: str,
    timeout_s: float,
    without: str | tuple[str, ...] | None = None,
    given: Mapping[str, str] | None = None,
) -> str:
    """As `ask`, with the variables `given` besides; raises why there is no answer.

    OSError or subprocess.SubprocessError, the latter with what the program said.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if without is None or not name.startswith(without)
    }
    done = subprocess.run(
        command,
        env={**kept, **(given or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=True,
    )
    return done.stdout
