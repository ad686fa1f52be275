"""Whether records have seconds of weights where their gradients are apart, and no other has any."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.loading.rank_files import RankFile
from analysis.loading.sampled_checks import Rows, impossible
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.experiment import Experiment

WEIGHTS_S = "weights_s"
_CLOCK_S = 1e-4
"""Between two readings of a clock, and sums of rounded seconds."""
_ELSEWHERE = "none but of a pipeline under schedule zero-bubble or zbv"


def check_weights(
    rows: Rows, is_of_weights: NDArray[np.bool_], file: RankFile, experiment: Experiment
) -> None:
    """Raises InputError for a step whose seconds of weights are missing, are more than its
    backward, or should not be there, and for a span of weights that should not.

    `is_of_weights` says it of each span of the file.
    """
    seconds = rows[WEIGHTS_S]
    if experiment.split_backward:
        most = rows["backward_s"]
        wrong = np.flatnonzero(~((seconds >= 0) & (seconds <= most + _CLOCK_S)))
        if len(wrong):
            allowed = f"0 to {most[wrong[0]]:.6f}, as it is a part of backward_s"
            raise impossible(rows, wrong[0], file, WEIGHTS_S, allowed)
        return
    wrong = np.flatnonzero(~np.isnan(seconds))
    if len(wrong):
        raise impossible(rows, wrong[0], file, WEIGHTS_S, _ELSEWHERE)
    if is_of_weights.any():
        raise InputError(file.path, "name of a span", "weights", _ELSEWHERE)
