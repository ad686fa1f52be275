"""Whether records of a stage of several parts have each of them, and no other record has any."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.loading.rank_files import RankFile
from analysis.loading.record_frames import TIMED_PARTS
from analysis.loading.sampled_checks import Rows, impossible
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.experiment import Experiment

PART_SECONDS = ("forward_s", "backward_s", "weights_s")
_CLOCK_S = 1e-4
"""Between two readings of a clock, and sums of rounded seconds."""


def check_parts(
    rows: Rows,
    parts: Rows,
    span_parts: NDArray[np.int16],
    file: RankFile,
    experiment: Experiment,
) -> None:
    """Raises InputError for a step without the seconds of each part, for parts that do not add up
    to the stage, for seconds of weights where they are not apart, and for a span of a part that the
    stage does not have.

    `parts` are the seconds of each part of each step, in order, and `span_parts` the part of each
    span, all of one file.
    """
    count = experiment.virtual_stages
    wanted = count if count > 1 else 0
    wrong = np.flatnonzero(rows[TIMED_PARTS] != wanted)
    if len(wrong):
        allowed = f"{wanted}: as many as the stage has" if wanted else "none of a stage of one part"
        raise impossible(rows, wrong[0], file, TIMED_PARTS, allowed)
    odd = np.flatnonzero((span_parts < 0) | (span_parts >= count))
    if len(odd):
        found = int(span_parts[odd[0]])
        raise InputError(file.path, "part of a span", found, f"0 to {count - 1}")
    if not wanted:
        return
    for name in PART_SECONDS:
        if name == "weights_s" and not experiment.split_backward:
            wrong = np.flatnonzero(~np.isnan(parts[name].reshape(-1, count)).all(axis=1))
            if len(wrong):
                seconds = parts[name].reshape(-1, count)
                allowed = "forward and backward alone, where weights are not apart"
                raise _impossible_part(rows, seconds, wrong[0], file, allowed)
            continue
        seconds = parts[name].reshape(-1, count)
        wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0)).all(axis=1))
        if len(wrong):
            raise _impossible_part(rows, seconds, wrong[0], file, "seconds, as a clock gives them")
        wrong = np.flatnonzero(np.abs(seconds.sum(axis=1) - rows[name]) > _CLOCK_S)
        if len(wrong):
            allowed = f"what adds up to {name}, {rows[name][wrong[0]]:.6f}"
            raise _impossible_part(rows, seconds, wrong[0], file, allowed)
        if name == "weights_s":
            backward = parts["backward_s"].reshape(-1, count)
            wrong = np.flatnonzero((seconds > backward + _CLOCK_S).any(axis=1))
            if len(wrong):
                allowed = "weights within the part's own backward"
                raise _impossible_part(rows, seconds, wrong[0], file, allowed)


def _impossible_part(
    rows: Rows, seconds: NDArray[np.float64], place: int, file: RankFile, allowed: str
) -> InputError:
    where = f"{file.path}: {rows['phase'][place]} step {rows['step'][place]}"
    return InputError(where, "part_s", seconds[place].tolist(), allowed)
