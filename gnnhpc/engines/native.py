"""The native engine: one stage's actions in the schedule's order, transfers beside computing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs, MicroBatch
from gnnhpc.core.schedule import SPLIT_BACKWARD, Action, Kind
from gnnhpc.engines.autograd import backward
from gnnhpc.engines.base import StagePlan, StepOutput, first_input
from gnnhpc.engines.left_weights import compute_deferred
from gnnhpc.engines.overlapped_gradients import gradients_of
from gnnhpc.engines.part_links import PartLinks, links_of
from gnnhpc.engines.stage_mistakes import changes_input, input_changed, without_gradient
from gnnhpc.models.layers.split_backward import DeferredGradient, deferring_to, split_backward

_NOTHING = contextlib.nullcontext()


@dataclass
class Held:
    """Of a micro-batch between its forward and the end of its backward."""

    x: Inputs
    result: Tensor | None
    """The part's output, or the loss; None once its backward is done."""
    received: Tensor | None = None
    """The buffer that x lies in, where it was received."""
    gradient: Tensor | None = None
    """Of the output, from the next stage."""
    deferred: list[DeferredGradient] | None = None
    """Gradients of weights that are still to be computed."""


class NativeEngine:
    """Runs the actions of `gnnhpc.core.schedule.stage_order` on tensors."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.training = links_of(plan, training=True)
        self.forward_only = ForwardOnly(plan)
        self.order = plan.order(training=True)
        self._last_kind: Kind = "weights" if plan.schedule in SPLIT_BACKWARD else "backward"
        self._backwards = [a.microbatch for a in self.order if (a.kind, a.part) == ("backward", 0)]
        self._ends = [_last_of(self.order, self._last_kind, part.place) for part in plan.parts]
        """Of each part, the action that gives it its last gradients."""
        self.gradients = gradients_of(plan, [self.order[n].microbatch for n in self._ends])

    @property
    def transfers(self) -> str | None:
        """How tensors come from and go to other stages, in words; None where there are none."""
        ways = {way for links in (*self.training, *self.forward_only.links) for way in links.ways}
        return " and ".join(sorted(ways, reverse=True)) or None

    def train_step(self, batch: Batch) -> StepOutput:
        plan, timer = self.plan, self.plan.timer
        plan.check(batch)
        held: dict[tuple[int, int], Held] = {}
        outputs: list[Tensor] = []
        losses: list[Tensor] = []
        for links in self.training:
            links.expect(batch, self._backwards)
        limited = [links for links in self.training if links.is_limited]
        with plan.stage.one_step(plan.microbatches):
            for done, action in enumerate(self.order):
                for links in limited:
                    links.allow(done)
                m, part = action.microbatch, action.part
                links = self.training[part]
                if action.kind == "forward":
                    held[part, m] = self._forward(links, batch, m, outputs, losses)
                else:
                    last = done == self._ends[part]
                    with self.gradients.last_of(part) if last else _NOTHING:
                        if action.kind == "backward":
                            self._backward(links, m, held[part, m])
                        else:
                            self._weights(links, m, held[part, m])
                if action.kind == self._last_kind:
                    self._release(links, held.pop((part, m)))
        with timer.span("wait"):
            for links in self.training:
                links.flush()
        self.gradients.average()
        return StepOutput(outputs, losses)

    def _forward(
        self,
        links: PartLinks,
        batch: Batch,
        m: int,
        outputs: list[Tensor],
        losses: list[Tensor],
    ) -> Held:
        """Adds to `outputs` and `losses` where the part is the last; else sends its output on."""
        plan, part, microbatch = self.plan, links.part, batch.microbatches[m]
        received = self._received(links, m)
        if received is None:
            x = first_input(microbatch)
        else:
            x = received.detach().requires_grad_(part.upstream_trains)
        # Not `with timer.span`, here and below, which makes four calls more of Python's.
        span = plan.timer.begin("forward", m, part.place)
        try:
            if self._last_kind == "weights":
                with split_backward():
                    output = part.stage(x, microbatch.context)
            else:
                output = part.stage(x, microbatch.context)
        except RuntimeError as error:
            if changes_input(error):
                raise input_changed(part.stage) from error
            raise
        result = plan.loss(output, microbatch, batch.labelled) if part.is_last else output
        plan.timer.end(span)
        if part.is_last:
            outputs.append(output.detach())
            losses.append(result.detach())
        elif links.activations_out is not None:
            links.activations_out.send(output.detach())
        return Held(x, result, received)

    def _received(self, links: PartLinks, m: int) -> Tensor | None:
        """The output of the part before; None where there is none."""
        receiver = links.activations_in
        if receiver is None:
            return None
        wait = self.plan.timer.begin("wait", m)
        x = receiver.take()
        self.plan.timer.end(wait)
        return x

    def _backward(self, links: PartLinks, m: int, held: Held) -> None:
        """Of inputs alone, as far as its layers can, where those of weights come later."""
        timer = self.plan.timer
        if links.gradients_in is not None:
            wait = timer.begin("wait", m)
            held.gradient = links.gradients_in.take()
            timer.end(wait)
        result, held.result = held.result, None
        assert result is not None
        if result.requires_grad:
            span = timer.begin("backward", m, links.part.place)
            if self._last_kind == "weights":
                held.deferred = []
                with deferring_to(held.deferred):
                    self._through(links, result, held.gradient)
            else:
                self._through(links, result, held.gradient)
            timer.layer_backward(None, timer.clock.mark())
            timer.end(span)
        if links.gradients_out is not None:
            assert isinstance(held.x, Tensor)
            if held.x.grad is None:
                raise without_gradient(links.part.stage)
            links.gradients_out.send(held.x.grad)

    def _through(self, links: PartLinks, result: Tensor, gradient: Tensor | None) -> None:
        """Backward, in which a forward may be computed again."""
        try:
            backward(result, gradient)
        except RuntimeError as error:
            if changes_input(error):
                raise input_changed(links.part.stage) from error
            raise

    def _weights(self, links: PartLinks, m: int, held: Held) -> None:
        """The gradients of weights that the micro-batch's backward has left."""
        timer = self.plan.timer
        if held.deferred is None:
            return
        with timer.span("weights", m, links.part.place):
            compute_deferred(held.deferred, timer)

    def _release(self, links: PartLinks, held: Held) -> None:
        """What was received may be overwritten."""
        if links.gradients_in is not None and held.gradient is not None:
            links.gradients_in.release(held.gradient)
        if links.activations_in is not None and held.received is not None:
            links.activations_in.release(held.received)

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        return self.forward_only.run(batch)


class ForwardOnly:
    """Evaluation through the same stages, with transfers of its own."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.links = links_of(plan, training=False)
        self.order = plan.order(training=False)

    def run(self, batch: Batch) -> Sequence[Tensor]:
        plan, timer = self.plan, self.plan.timer
        plan.check(batch)
        outputs: list[Tensor] = []
        for links in self.links:
            links.expect(batch)
        with torch.no_grad():
            for done, action in enumerate(self.order):
                for links in self.links:
                    links.allow(done)
                m, links = action.microbatch, self.links[action.part]
                output = self._forward(links, batch.microbatches[m], m)
                if links.activations_out is None:
                    outputs.append(output)
            with timer.span("wait"):
                for links in self.links:
                    links.flush()
        return outputs

    def _forward(self, links: PartLinks, microbatch: MicroBatch, m: int) -> Tensor:
        timer = self.plan.timer
        received: Tensor | None = None
        if links.activations_in is not None:
            with timer.span("wait", m):
                received = links.activations_in.take()
        x = first_input(microbatch) if received is None else received
        with timer.span("forward", m, links.part.place):
            output: Tensor = links.part.stage(x, microbatch.context)
        if received is not None and _shares_memory(output, received):
            # A stage of dropout alone hands its input on; the buffer is filled again
            # while what was sent from it, or is still to be judged, waits.
            output = output.clone()
        if links.activations_out is not None:
            links.activations_out.send(output)
        if links.activations_in is not None and received is not None:
            links.activations_in.release(received)
        return output


def _last_of(order: Sequence[Action], kind: Kind, part: int) -> int:
    """The number of a part's last action of this kind."""
    return max(n for n, each in enumerate(order) if (each.kind, each.part) == (kind, part))


def _shares_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
