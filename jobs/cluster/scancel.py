"""Calling scancel."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence

from gnnhpc.core.errors import GnnhpcError, InputError

_TIMEOUT_S = 60


def scancel(jobs: Sequence[str]) -> None:
    """Cancel these jobs; raises GnnhpcError if scancel refuses, InputError without one here."""
    if shutil.which("scancel") is None:
        raise InputError(
            "cancel", None, f"jobs {', '.join(jobs)} and no scancel here", "their host"
        )
    try:
        done = subprocess.run(
            ["scancel", *jobs], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise GnnhpcError(f"scancel: no answer within {_TIMEOUT_S} s") from None
    if done.returncode:
        raise GnnhpcError(f"scancel: {' '.join(done.stderr.split())}")
