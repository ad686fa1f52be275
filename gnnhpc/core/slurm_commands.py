"""Calls of Slurm's commands, which may be missing or not answer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

TIMEOUT_S = 15.0


def variables_without(prefix: str) -> dict[str, str]:
    """This process's variables without those, such as SQUEUE_, by which a user's defaults would
    change the output of a command."""
    return {name: value for name, value in os.environ.items() if not name.startswith(prefix)}


def ask(
    *command: str, timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None
) -> str | None:
    """The output of a command; None where it is missing, fails or does not answer in time."""
    try:
        return run_slurm(*command, timeout_s=timeout_s, environment=environment)
    except (OSError, subprocess.SubprocessError):
        return None


def run_slurm(*command: str, timeout_s: float, environment: Mapping[str, str] | None = None) -> str:
    """The output of a command, with these variables or else this process's.

    Raises OSError, or subprocess.SubprocessError with what the program printed.
    """
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=True,
    )
    return done.stdout
