"""Attempts whose job measured the cell once more: Slurm had requeued it after its result."""

from __future__ import annotations

import pandas as pd


def measured_again(attempts: pd.DataFrame) -> pd.DataFrame:
    """The rows of `Run.attempts` that are valid and that a later one of their own job replaced.

    Jobs end at once in that case since they look for a result first; older runs have these. An
    attempt of this machine is in no job.
    """
    in_jobs = attempts[attempts["job"].notna() & attempts["valid"].astype(bool)]
    used = in_jobs["used"].astype(bool)
    theirs = set(zip(in_jobs[used]["cell"], in_jobs[used]["job"], strict=True))
    others = in_jobs[~used]
    places = zip(others["cell"], others["job"], strict=True)
    return others[pd.Series([place in theirs for place in places], others.index, dtype=bool)]
