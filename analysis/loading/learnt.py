"""What attempts learnt, from their ranks' records: losses and gradient norms, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.across.rounding import Values
from analysis.loading.attempts import UsedSteps
from analysis.loading.rank_files import RankFile, RankFrames

Key = tuple[int, int]
"""A cell's position in the manifest, and an attempt's number."""


@dataclass(frozen=True)
class Learnt:
    """The records of one attempt: steps ascending, with the loss and the gradient's norm."""

    train: NDArray[Any]
    losses: Values
    norms: Values
    test: NDArray[Any]
    test_losses: Values


def learnt_by_attempt(frames: RankFrames, files: Sequence[RankFile]) -> dict[Key, Learnt]:
    """Of each attempt whose files were read.

    The loss is the last stage's; the norm of the whole gradient is the root of the sum of squares
    over the stages of the first replica: all replicas have the same gradient.
    """
    steps = frames.steps
    if steps.empty:
        return {}
    source = steps["source"].to_numpy()
    replica = np.array([(header or {}).get("replica", 0) for header in frames.headers])[source]
    table = pd.DataFrame(
        {
            "cell": np.array([file.cell for file in files])[source],
            "attempt": np.array([file.attempt for file in files])[source],
            "test": (steps["phase"] == "test").to_numpy(),
            "step": steps["step"].to_numpy(),
            "loss": steps["loss"].to_numpy(),
            "square": np.where(replica == 0, steps["grad_norm"].to_numpy() ** 2, np.nan),
        }
    )
    grouped = table.groupby(["cell", "attempt", "test", "step"], sort=True)
    merged = pd.DataFrame(
        {"loss": grouped["loss"].max(), "square": grouped["square"].sum(min_count=1)}
    )
    merged["norm"] = np.sqrt(merged["square"])
    found = {}
    for key, part in merged.groupby(level=["cell", "attempt"], sort=False):
        cell, attempt = cast(Key, key)
        tested = part.index.get_level_values("test").to_numpy().astype(bool)
        step = part.index.get_level_values("step").to_numpy()
        loss, norm = part["loss"].to_numpy(), part["norm"].to_numpy()
        found[cell, attempt] = Learnt(
            step[~tested], loss[~tested], norm[~tested], step[tested], loss[tested]
        )
    return found


def join_resumed(
    cell: int, chain: Sequence[UsedSteps], learnt: dict[Key, Learnt]
) -> tuple[Values, Values, dict[int, float]]:
    """Losses and norms from step 0, nan where missing, and test losses, of a chain of resumes.

    `chain` is newest first, as from `resume_chain`; each attempt gives the steps that count of it.
    """
    parts = [
        (use, learnt[cell, use.attempt.number])
        for use in reversed(chain)
        if (cell, use.attempt.number) in learnt
    ]
    length = max((int(part.train[-1]) + 1 for _, part in parts if part.train.size), default=0)
    losses, norms = np.full(length, np.nan), np.full(length, np.nan)
    tests: dict[int, float] = {}
    for use, part in parts:
        stop = length if use.stop is None else use.stop
        counts = (part.train >= use.first) & (part.train < stop)
        losses[part.train[counts]] = part.losses[counts]
        norms[part.train[counts]] = part.norms[counts]
        tests |= dict(zip(part.test.tolist(), part.test_losses.tolist(), strict=True))
    return losses, norms, tests
