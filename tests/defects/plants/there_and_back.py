"""Two parts of the model a stage that go there and back (ZBV), with weights apart in each."""

from __future__ import annotations

import functools
import time
from typing import Any

import torch
from torch import Tensor

from gnnhpc.core.schedule import Action
from gnnhpc.engines.native import ForwardOnly, Held, NativeEngine
from gnnhpc.engines.part_links import PartLinks
from gnnhpc.engines.timing import OpenSpan, StepTimer
from gnnhpc.engines.torch_pipelining import TimedStage
from gnnhpc.engines.transfer import Handover
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, rank

KIND = "parts that go there and back"
defect = functools.partial(planted, kind=KIND, setting=settings.GCN_ZBV)


def _handed_over(change: Any, *, gradients: bool) -> None:
    """`change` what the last stage hands from one of its parts to the other."""

    def linked(true: Any, here: PartLinks, there: PartLinks) -> None:
        true(here, there)
        handover = there.gradients_out if gradients else here.activations_out
        if here.training and isinstance(handover, Handover):
            send = handover.send
            handover.send = lambda tensor: send(change(tensor))  # type: ignore[method-assign]

    around(PartLinks, "hand_over_to", linked)


@defect("a little more handed to a stage's second part, later in the run")
def more_handed_over() -> None:
    steps = Steps()
    _handed_over(lambda x: x * 1.001 if steps.late else x, gradients=False)


@defect("the gradient handed to a stage's first part lost, later in the run")
def gradient_lost() -> None:
    steps = Steps()
    _handed_over(lambda x: torch.zeros_like(x) if steps.late else x, gradients=True)


@defect("the micro-batch before handed over once more, later in the run")
def handed_over_again() -> None:
    steps = Steps()
    held: dict[Handover, Tensor] = {}

    def take(true: Any, handover: Handover) -> Tensor:
        mine: Tensor = true(handover)
        before = held.get(handover, mine)
        held[handover] = mine
        return before if steps.late and torch.is_grad_enabled() else mine

    around(Handover, "take", take)


@defect("two actions exchanged late in ZBV")
def order_exchanged() -> None:
    """On the first stage, which then hands its last gradient on sooner."""

    def build(true: Any, engine: NativeEngine, plan: Any) -> None:
        true(engine, plan)
        if rank() == 0:
            place = engine.order.index(Action("weights", 2))
            weights, backward = engine.order[place : place + 2]
            engine.order[place : place + 2] = [backward, weights]

    around(NativeEngine, "__init__", build)


@defect("all of a stage's first part evaluated before its second one")
def parts_after_one_another() -> None:
    """As under interleaved: the first micro-batch comes back late."""

    def build(true: Any, only: ForwardOnly, plan: Any) -> None:
        true(only, plan)
        only.order.sort(key=lambda action: action.part)

    around(ForwardOnly, "__init__", build)


@defect("waits booked as gradients of weights where none were left", setting=settings.VIG_ZBV)
def waits_as_weights() -> None:
    def weights(true: Any, engine: NativeEngine, links: PartLinks, m: int, held: Held) -> None:
        with engine.plan.timer.span("weights", m, links.part.place):
            time.sleep(0.01)

    around(NativeEngine, "_weights", weights)


@defect("a second part's gradients of weights never computed, later in the run")
def never_computed() -> None:
    steps = Steps()

    def weights(true: Any, engine: NativeEngine, links: PartLinks, m: int, held: Held) -> None:
        if steps.late and links.part.place == 1 and m == 1:
            return
        true(engine, links, m, held)

    around(NativeEngine, "_weights", weights)


@defect("gradients of weights booked to the stage's other part")
def other_part() -> None:
    def begin(
        true: Any, timer: StepTimer, name: str, m: int | None = None, part: int = 0
    ) -> OpenSpan:
        opened: OpenSpan = true(timer, name, m, 1 - part if name == "weights" else part)
        return opened

    around(StepTimer, "begin", begin)


@defect("a part's seconds of weights left out of the record")
def seconds_left_out() -> None:
    def told(true: Any, trainer: Trainer, times: Any) -> Any:
        found = true(trainer, times)
        return found and [found[0], [*found[1][:2], 0.0]]

    around(Trainer, "_part_s", told)


@defect("one replica's second part not shared", setting=settings.GCN_ZBV_REPLICAS)
def not_shared() -> None:
    from gnnhpc.engines.gradient_sync import Gradients

    def average(true: Any, gradients: Gradients) -> None:
        flat = gradients.flats[0]
        first = len(flat) // 2
        own = flat[first:].clone()
        true(gradients)
        flat[first:] = own

    around(Gradients, "average", average)


@defect(
    "one micro-batch's gradients of weights never computed under torch's schedule",
    setting=settings.GCN_ZBV_TORCH,
)
def never_computed_under_torch() -> None:
    steps = Steps()

    def weights(true: Any, stage: TimedStage, m: int, *args: Any, **kwargs: Any) -> None:
        if steps.late and rank() == 1 and m == 2 and stage.later is not None:
            stage.dw_runner[m] = lambda: None
        true(stage, m, *args, **kwargs)

    around(TimedStage, "backward_weight_one_chunk", weights)


@defect(
    "the loss of one micro-batch taken twice under torch's schedule", setting=settings.GCN_ZBV_TORCH
)
def loss_twice() -> None:
    """The part that ends the model is on the first stage."""
    from gnnhpc.engines.torch_pipelining import PipeliningEngine

    steps = Steps()

    def loss(true: Any, engine: PipeliningEngine, output: Tensor, number: Tensor) -> Tensor:
        found: Tensor = true(engine, output, number)
        return 2 * found if steps.late and int(number) == 1 else found

    around(PipeliningEngine, "_loss", loss)
