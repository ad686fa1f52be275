"""Slurm's programs misbehaving: scripts that come first on PATH, the real programs behind them."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from tests.cluster.slurm import SEARCH_PATH

NO_CONTROLLER = "Unable to contact slurm controller (connect failure)"
TIMED_OUT = "Socket timed out on send/recv operation"

FAILS = f"echo 'slurm_load_jobs error: {NO_CONTROLLER}' >&2; exit 1"
TIMES_OUT = f"echo 'sbatch: error: Batch job submission failed: {TIMED_OUT}' >&2; exit 1"
LOSES_ITS_ANSWER = f'"$real" "$@" >/dev/null || exit; {TIMES_OUT}'
KILLS_ITS_CALLER = '"$real" "$@"; kill -KILL $PPID; exit'


def shims(folder: Path, **bodies: str) -> dict[str, str]:
    """Variables with which these programs run lines of bash first; `$real` is the real one."""
    folder.mkdir()
    for program, body in bodies.items():
        real = shutil.which(program, path=SEARCH_PATH)
        assert real is not None
        script = folder / program
        script.write_text(
            f'#!/bin/bash\nreal={shlex.quote(real)}\n{body}\nexec "$real" "$@"\n', encoding="utf-8"
        )
        script.chmod(0o755)
    return {"PATH": os.pathsep.join((str(folder), SEARCH_PATH))}
