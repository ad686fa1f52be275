"""Layers whose gradient is rounding alone, or nearly: how far off sound code may be there.

Where a softmax is sure of the label, or every GELU is far below zero, a layer's true gradient is
smaller than what rounding makes of it. The twin's step is taken again with such errors drawn (see
`gnnhpc.check.twin.backward_rounding`); how far they move a layer's gradient is what is allowed it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gnnhpc.check.capture import Array
from gnnhpc.check.compare_gradients import differences
from gnnhpc.check.twin.backward_rounding import BackwardRounding
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.training import TwinModel, TwinStep, train_step
from gnnhpc.models.model import OutputKind

DRAWS = 4


def lost_in_rounding(
    model: TwinModel,
    pieces: Sequence[Piece],
    before: Mapping[str, Array],
    step: int,
    outputs: OutputKind,
    twin: TwinStep,
    layers: list[str],
    eps: float,
) -> dict[str, float]:
    """Of each layer, the largest change of its gradient over the draws, relative to the twin's.

    `twin` is the step without errors, `model` what it began from, which is not moved.
    """
    found = dict.fromkeys(layers, 0.0)
    for draw in range(DRAWS):
        copied = model.copied()
        if copied is None:
            break
        rounding = BackwardRounding(eps, draw)
        drawn = train_step(copied, pieces, before, step, outputs, rounding)
        for each in differences(drawn.gradients, twin.gradients, layers):
            # What is no number allows nothing.
            if math.isfinite(each.relative):
                found[each.layer] = max(found[each.layer], each.relative)
    return found
