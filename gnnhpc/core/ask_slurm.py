"""Asks a program of Slurm's for what it knows, where it may be missing or not answer."""

from __future__ import annotations

import os
import shutil
import subprocess

TIMEOUT_S = 15.0


def ask(*command: str, timeout_s: float = TIMEOUT_S, without: str | None = None) -> str | None:
    """What a command prints; None where it is missing, fails or does not answer in time.

    `without`: the start of variables that it does not get, such as SQUEUE_, which would change what
    a user's own defaults let it answer.
    """
    if shutil.which(command[0]) is None:
        return None
    kept = {
        name: value
        for name, value in os.environ.items()
        if without is None or not name.startswith(without)
    }
    try:
        done = subprocess.run(
            command,
            env=kept,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
