"""The native engine: one stage's actions in the schedule's order, transfers beside computing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs, MicroBatch
from gnnhpc.core.schedules import SPLIT_BACKWARD, Action, Kind
from gnnhpc.engines.engine import StagePlan, StepOutput, backward, compute_deferred, first_input
from gnnhpc.engines.gradient_sync import gradients_of
from gnnhpc.engines.stage import naming_changed_input, without_gradient
from gnnhpc.engines.transfers import StageTransfers, transfers_of
from gnnhpc.models.layers.split_backward import DeferredGradient, deferring_to, split_backward

_NOTHING = contextlib.nullcontext()


@dataclass
class Held:
    """What is kept of a micro-batch between its forward and the end of its backward."""

    x: Inputs
    result: Tensor | None
    """The part's output, or the loss; None once its backward is done."""
    received: Tensor | None = None
    """The buffer that x lies in, where it was received."""
    gradient: Tensor | None = None
    """The gradient of the output, from the next stage."""
    deferred: list[DeferredGradient] | None = None
    """Gradients of weights that are still to be computed."""


class NativeEngine:
    """Runs the actions of `gnnhpc.core.schedules.stage_order` on tensors."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.training = transfers_of(plan, training=True)
        self.forward_only = ForwardOnly(plan)
        self.order = plan.order(training=True)
        self._last_kind: Kind = "weights" if plan.schedule in SPLIT_BACKWARD else "backward"
        self._backwards = [
            a.microbatch for a in self.order if (a.kind, a.virtual_stage) == ("backward", 0)
        ]
        self._ends = [
            _last_of(self.order, self._last_kind, part.place) for part in plan.virtual_stages
        ]
        """For each virtual stage, the action that gives it its last gradients."""
        self.gradients = gradients_of(plan, [self.order[n].microbatch for n in self._ends])
        plan.stage.use_stacks()

    @property
    def transfers(self) -> str | None:
        """How tensors come from and go to other stages, in words; None where there are none."""
        ways = {way for links in (*self.training, *self.forward_only.links) for way in links.ways}
        return " and ".join(sorted(ways, reverse=True)) or None

    def train_step(self, batch: Batch) -> StepOutput:
        timer = self.plan.timer
        held: dict[tuple[int, int], Held] = {}
        outputs: list[Tensor] = []
        losses: list[Tensor] = []
        for links in self.training:
            links.expect(batch, self._backwards)
        limited = [links for links in self.training if links.is_limited]
        for done, action in enumerate(self.order):
            for links in limited:
                links.allow(done)
            m, place = action.microbatch, action.virtual_stage
            links = self.training[place]
            if action.kind == "forward":
                held[place, m] = self._forward(links, batch, m, outputs, losses)
            else:
                last = done == self._ends[place]
                with self.gradients.last_of(place) if last else _NOTHING:
                    if action.kind == "backward":
                        self._backward(links, m, held[place, m])
                    else:
                        self._weights(links, m, held[place, m])
            if action.kind == self._last_kind:
                self._release(links, held.pop((place, m)))
        timer.begin("wait")
        for links in self.training:
            links.flush()
        timer.end()
        self.gradients.average()
        self.plan.stage.end_minibatch()
        return StepOutput(outputs, losses)

    def _forward(
        self,
        links: StageTransfers,
        batch: Batch,
        m: int,
        outputs: list[Tensor],
        losses: list[Tensor],
    ) -> Held:
        """Adds to `outputs` and `losses` where the model ends; else sends its output on."""
        plan, part, microbatch = self.plan, links.part, batch.microbatches[m]
        received = received_input(links, m)
        if received is None:
            x = first_input(microbatch)
        else:
            x = received.detach().requires_grad_(part.upstream_trains)
        plan.timer.begin("forward", m, part.place)
        split = split_backward() if self._last_kind == "weights" else _NOTHING
        with naming_changed_input(part.stage), split:
            output = part.stage(x, microbatch.context)
        result = plan.loss(output, microbatch, batch.valid_targets) if part.is_last else output
        plan.timer.end()
        if part.is_last:
            outputs.append(output.detach())
            losses.append(result.detach())
        elif links.activations_out is not None:
            links.activations_out.send(output.detach())
        return Held(x, result, received)

    def _backward(self, links: StageTransfers, m: int, held: Held) -> None:
        """Backward of inputs alone, as far as the layers can, under split backward."""
        timer = self.plan.timer
        if links.gradients_in is not None:
            timer.begin("wait", m)
            held.gradient = links.gradients_in.take()
            timer.end()
        result, held.result = held.result, None
        assert result is not None
        if result.requires_grad:
            timer.begin("backward", m, links.part.place)
            # A forward may be recomputed in it.
            with naming_changed_input(links.part.stage):
                if self._last_kind == "weights":
                    held.deferred = []
                    with deferring_to(held.deferred):
                        backward(result, held.gradient)
                else:
                    backward(result, held.gradient)
            timer.end()
        if links.gradients_out is not None:
            assert isinstance(held.x, Tensor)
            if held.x.grad is None:
                raise without_gradient(links.part.stage)
            links.gradients_out.send(held.x.grad)

    def _weights(self, links: StageTransfers, m: int, held: Held) -> None:
        """The gradients of weights that the micro-batch's backward has left."""
        if held.deferred is not None:
            self.plan.timer.begin("weights", m, links.part.place)
            compute_deferred(held.deferred)
            self.plan.timer.end()

    def _release(self, links: StageTransfers, held: Held) -> None:
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
        self.links = transfers_of(plan, training=False)
        self.order = plan.order(training=False)

    def run(self, batch: Batch) -> Sequence[Tensor]:
        timer = self.plan.timer
        outputs: list[Tensor] = []
        for links in self.links:
            links.expect(batch)
        with torch.no_grad():
            for done, action in enumerate(self.order):
                for links in self.links:
                    links.allow(done)
                m, links = action.microbatch, self.links[action.virtual_stage]
                output = self._forward(links, batch.microbatches[m], m)
                if links.activations_out is None:
                    outputs.append(output)
            timer.begin("wait")
            for links in self.links:
                links.flush()
            timer.end()
        return outputs

    def _forward(self, links: StageTransfers, microbatch: MicroBatch, m: int) -> Tensor:
        timer = self.plan.timer
        received = received_input(links, m)
        x = first_input(microbatch) if received is None else received
        timer.begin("forward", m, links.part.place)
        output: Tensor = links.part.stage(x, microbatch.context)
        timer.end()
        if received is not None and _shares_memory(output, received):
            # A stage of dropout alone returns its input, whose buffer is filled again
            # before the output has been sent or scored.
            output = output.clone()
        if links.activations_out is not None:
            links.activations_out.send(output)
        if links.activations_in is not None and received is not None:
            links.activations_in.release(received)
        return output


def received_input(links: StageTransfers, m: int) -> Tensor | None:
    """The output of the virtual stage before, for micro-batch `m`; None where there is none."""
    if links.activations_in is None:
        return None
    links.plan.timer.begin("wait", m)
    x = links.activations_in.take()
    links.plan.timer.end()
    return x


def _last_of(order: Sequence[Action], kind: Kind, part: int) -> int:
    """The number of a part's last action of this kind."""
    return max(n for n, each in enumerate(order) if (each.kind, each.virtual_stage) == (kind, part))


def _shares_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
