"""What an evaluation, or a training step, gave of few rows, against what the twin makes of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnhpc.check.capture import Array, Ids, array_of
from gnnhpc.check.outputs_apart import relative_difference, without_unknown
from gnnhpc.check.own_draws import draws_of
from gnnhpc.check.twin.own_model import OwnModelTwin
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.plain_model import PlainModel


@dataclass(frozen=True)
class EvaluatedPiece:
    """Rows `rows` of what `piece` gives, and the parameters and buffers by name."""

    piece: Piece
    rows: Ids
    state: Mapping[str, Array]
    step: int
    training: bool = False

    def difference(
        self,
        found: Array,
        twin: PlainModel | OwnModelTwin,
        single: PlainModel | None,
        tolerance: float,
    ) -> tuple[float, float]:
        """How far `found` is from the twin's, relative to these, and how far it may be: what the
        twin in the run's precision explains besides."""
        began = twin.copied()
        expected = self.outputs(twin)
        if not self.training:
            found, expected = without_unknown(found, expected)
        relative = relative_difference(found, expected)
        draws = draws_of(began, single, self.outputs, expected, _as_one_layers)
        if draws is None:
            return relative, tolerance
        away = functools.partial(relative_difference, exact=expected)
        return relative, draws.allowed(relative, tolerance, away)

    def outputs(self, twin: PlainModel | OwnModelTwin) -> Array:
        # In training the twin keeps what the gradients of kinks need.
        trains = self.training
        values = {
            n: torch.from_numpy(value).to(twin.dtype).requires_grad_(trains)
            for n, value in self.state.items()
            # What is complex is a user's buffer, which the twin has.
            if np.isrealobj(value)
        }
        with torch.set_grad_enabled(trains):
            found = twin.forward(self.piece, values, self.step, training=trains)[-1]
        dense = found if isinstance(found, Tensor) else found.to_dense()
        chosen: Array = array_of(dense)[self.rows]
        return chosen


def _as_one_layers(outputs: Array) -> list[list[Tensor]]:
    return [[torch.from_numpy(outputs)]]
