"""Asks a program of Slurm's for what it knows, where it may be missing or not answer."""

from __future__ import annotations

import shutil
import subprocess

TIMEOUT_S = 15


def ask(*command: str) -> str | None:
    """What a command prints; None where it is missing, fails or does not answer in time."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
