"""Orders of actions, virtual stages, split backward, recomputation."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from torch import Tensor

from gnnhpc.core.schedules import Action
from gnnhpc.engines import native
from gnnhpc.engines.native import Held, NativeEngine
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.transfers import StageTransfers
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.models.model import Context
from tests.defects import cells
from tests.defects.defect import around, planted, rank

defect = functools.partial(planted, kind="schedules and recomputation", mechanism="engine-parity")


@defect(
    cell=cells.GAT_ZERO_BUBBLE,
    words="the gradient of layer0.attention differs",
    at=(NativeEngine, "_weights"),
)
def gradients_of_weights_never_computed(
    original: Any, engine: NativeEngine, links: StageTransfers, action: Action, held: Held
) -> None:
    if rank() == 1 or action.microbatch != 2:
        original(engine, links, action, held)


@defect(cell=cells.VIG_VIRTUAL, words="outputs: block1.ffn")
def the_input_of_another_virtual_stage() -> None:
    held: dict[int, Tensor] = {}

    def received(original: Any, links: StageTransfers, m: int) -> Any:
        x = original(links, m)
        if rank() == 1 and links.part.place == 0:
            held[m] = x.clone()
        elif rank() == 1:
            x.copy_(held[m])
        return x

    around(native, "received_input", received)


@defect(
    cell=cells.VIG_VIRTUAL.but(spans=True),
    mechanism="record-audit",
    words="interleaved has",
    at=(NativeEngine, "__init__"),
)
def two_actions_in_another_order(original: Any, engine: NativeEngine, plan: Any) -> None:
    """On the last stage, the last forward comes before the backward that precedes it."""
    original(engine, plan)
    if rank() == 1:
        last = max(n for n, action in enumerate(engine.order) if action.kind == "forward")
        backward, forward = engine.order[last - 1 : last + 1]
        engine.order[last - 1 : last + 1] = [forward, backward]


@defect(
    cell=cells.GAT_GPIPE, words="the gradient of layer1.attention differs", at=(Stage, "forward")
)
def a_forward_recomputed_with_another_mask(
    original: Any, part: Stage, x: Any, context: Context
) -> Tensor:
    if is_recomputing():
        context = dataclasses.replace(context, step=context.step + 1)
    output: Tensor = original(part, x, context)
    return output
