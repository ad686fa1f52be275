"""`submit --test-only`: asks Slurm about each array of a plan without submitting it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnhpc.core.errors import GnnhpcError
from jobs.actions.after import jobs_to_wait_for
from jobs.cluster.array_executor import outside_of_jobs
from jobs.cluster.array_script import render_script
from jobs.cluster.arrays import Array, after_jobs
from jobs.cluster.blocks import BlockArray, arrays_of, needs_of
from jobs.cluster.launch import Launch
from jobs.cluster.shell_defaults import check_shell, without_overrides
from jobs.spec.planning import Plan

_TIMEOUT_S = 60


@dataclass(frozen=True)
class Answer:
    """What Slurm says of one array."""

    label: str
    cells: int
    words: str
    refused: bool


def try_arrays(
    plan: Plan,
    run: Path,
    launch: Launch,
    after: Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
    *,
    paired: bool = False,
) -> list[Answer]:
    """When each array of the plan would start, or why it would be refused; nothing is written.

    Slurm looks at the first cell, as if nothing else of the plan were queued. Raises GnnhpcError if
    sbatch does not answer.
    """
    waits = jobs_to_wait_for(after, "slurm", tell)
    answers = []
    for array in arrays_of(plan.cells, launch.array_limit, paired=paired):
        needs = after_jobs(needs_of(array, launch.site), waits)
        with outside_of_jobs(), without_overrides(needs.options()):
            check_shell(needs.options())
            answers.append(_ask(array, render_script(array, run, needs, launch)))
    return answers


def _ask(array: Array | BlockArray, script: str) -> Answer:
    try:
        done = subprocess.run(
            ["sbatch", "--test-only"],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise GnnhpcError(f"sbatch --test-only: no answer within {_TIMEOUT_S} s") from None
    said = " ".join((done.stderr or done.stdout).replace("sbatch: ", "").split())
    return Answer(array.label, len(array.cells), said or "nothing", done.returncode != 0)
