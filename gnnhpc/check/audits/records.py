"""What ranks wrote: the times in their files must be those that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.records.schema import Check
from gnnhpc.records.writer import Written


def written(observations: Sequence[RankObservations], files: Sequence[Written]) -> Check:
    """`files` are in the order of the ranks; the sums are of the same numbers in the same order."""
    wrong = [
        f"{file.file} has {file.steps_s:.6f} s of steps, rank {each.rank} measured "
        f"{each.all_steps_s:.6f} s"
        for each, file in zip(observations, files, strict=True)
        if not math.isclose(file.steps_s, each.all_steps_s, rel_tol=1e-9)
    ]
    if wrong:
        return Check("records", "invalid", "; ".join(wrong), {})
    return Check("records", "ok", "files have the step times that were measured", {})
