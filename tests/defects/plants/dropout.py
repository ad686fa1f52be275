"""Dropout masks and their seeds."""

from __future__ import annotations

import functools
from typing import Any

from gnnhpc.kernels import dropout_mask as mask
from gnnhpc.models.layers import dropout
from tests.defects import cells
from tests.defects.defect import around, planted, rank

defect = functools.partial(
    planted, kind="dropout", mechanism="engine-parity", words="outputs: layer0.dropout"
)


@defect("the same dropout mask in every step", cell=cells.GAT)
def same_in_every_step() -> None:
    def first(original: Any, seed: int, step: int, name: str, p: float) -> Any:
        return original(seed, 0, name, p)

    around(mask, "layer_mask", first)


@defect("dropout masks by the seed of another replica", cell=cells.GAT_REPLICAS)
def other_replicas_seed() -> None:
    def own(original: Any, seed: int, step: int, name: str, p: float) -> Any:
        return original(seed + rank(), step, name, p)

    around(mask, "layer_mask", own)


@defect("dropout in evaluation", cell=cells.GAT)
def in_evaluation() -> None:
    def always(original: Any, name: str, p: float, training: bool, context: Any) -> Any:
        return original(name, p, True, context)

    around(dropout, "active_mask", always)
