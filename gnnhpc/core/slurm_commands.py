"""Calls of Slurm's commands, which may be missing or not answer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

TIMEOUT_S = 15.0


def ask(*command: str, timeout_s: float = TIMEOUT_S, without: str | None = None) -> str | None:
    """The output of a command; None where it is missing, fails or does not answer in time.

    `without` is the prefix of variables to leave out, such as SQUEUE_, by which a user's defaults
    would change the output.
    """
    try:
        return run_slurm(*command, timeout_s=timeout_s, without=without)
    except (OSError, subprocess.SubprocessError):
        return None


def run_slurm(
    *command: str,
    timeout_s: float,
    without: str | None = None,
    more: Mapping[str, str] | None = None,
) -> str:
    """The output of a command that gets the variables `more` too.

    Raises OSError, or subprocess.SubprocessError with what the program printed.
    """
    kept = {k: v for k, v in os.environ.items() if not (without and k.startswith(without))}
    done = subprocess.run(
        command,
        env={**kept, **(more or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=True,
    )
    return done.stdout
