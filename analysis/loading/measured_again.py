"""Attempts whose job measured the cell once more: Slurm had requeued it after its result."""

from __future__ import annotations

import pandas as pd


def measured_again(attempts: pd.DataFrame) -> pd.DataFrame:
    """The rows of `Run.attempts` that are valid and that a later one of their own job replaced.

    Jobs end at once in that case since they look for a result first; older runs have these.
    """
    used = attempts[attempts["used"].astype(bool) & attempts["valid"].astype(bool)]
    theirs = {(cell, job) for cell, job in zip(used["cell"], used["job"], strict=True) if job}
    places = zip(attempts["cell"], attempts["job"], strict=True)
    again = pd.Series([place in theirs for place in places], attempts.index, dtype=bool)
    return attempts[again & attempts["valid"].astype(bool) & ~attempts["used"].astype(bool)]
