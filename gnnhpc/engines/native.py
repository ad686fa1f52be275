"""The native engine: one stage's actions in the schedule's order, transfers beside computing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.core.schedules import Action, Kind
from gnnhpc.engines.cuda_graph import Actions, Held, graphs_of
from gnnhpc.engines.engine import StagePlan, StepOutput, backward, compute_deferred, first_input
from gnnhpc.engines.gradient_sync import gradients_of
from gnnhpc.engines.transfers import StageTransfers, transfers_of
from gnnhpc.models.layers.split_backward import deferring_to, split_backward

_NOTHING = contextlib.nullcontext()


class NativeEngine:
    """Runs the actions of `gnnhpc.core.schedules.stage_order` on tensors."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.graphs = graphs_of(plan)
        self._actions = self.graphs or Actions()
        self.training = transfers_of(plan, training=True)
        self.forward_only = ForwardOnly(plan, self._actions)
        self.order = plan.order(training=True)
        self._last_kind: Kind = "weights" if plan.experiment.split_backward else "backward"
        self._backwards = [
            a.microbatch for a in self.order if (a.kind, a.virtual_stage) == ("backward", 0)
        ]
        last = {a.virtual_stage: n for n, a in enumerate(self.order) if a.kind == self._last_kind}
        self._ends = [last[part.place] for part in plan.virtual_stages]
        """For each virtual stage, the number of the action that gives it its last gradients."""
        self.gradients = gradients_of(plan, [self.order[n].microbatch for n in self._ends])
        plan.stage.use_stacks()

    @property
    def transfers(self) -> str | None:
        """How tensors come from and go to other stages, in words; None where there are none."""
        ways = {way for links in (*self.training, *self.forward_only.links) for way in links.ways}
        return " and ".join(sorted(ways, reverse=True)) or None

    def train_step(self, batch: Batch) -> StepOutput:
        timer = self.plan.timer
        self.gradients.zero()
        batch = self._actions.begin("train", batch)
        held: dict[tuple[int, int], Held] = {}
        outputs: list[Tensor] = []
        losses: list[Tensor] = []
        for links in self.training:
            links.expect(batch, self._backwards)
        limited = [receiver for links in self.training for receiver in links.limited]
        for done, action in enumerate(self.order):
            for receiver in limited:
                receiver.allow(done)
            m, place = action.microbatch, action.virtual_stage
            links = self.training[place]
            if action.kind == "forward":
                held[place, m] = self._forward(links, batch, action, outputs, losses)
            else:
                last = done == self._ends[place]
                with self.gradients.last_of(place) if last else _NOTHING:
                    if action.kind == "backward":
                        self._backward(links, action, held[place, m])
                    else:
                        self._weights(links, action, held[place, m])
            if action.kind == self._last_kind:
                self._release(links, held.pop((place, m)))
        timer.begin("wait")
        for links in self.training:
            links.flush()
        timer.end()
        self._actions.end()
        self.gradients.average()
        self.plan.stage.end_minibatch()
        return StepOutput(outputs, losses)

    def _forward(
        self,
        links: StageTransfers,
        batch: Batch,
        action: Action,
        outputs: list[Tensor],
        losses: list[Tensor],
    ) -> Held:
        """Adds to `outputs` and `losses` where the model ends; else sends its output on."""
        m, plan, part = action.microbatch, self.plan, links.part
        microbatch, received = batch.microbatches[m], received_input(links, m)

        def work(held: Held) -> tuple[Tensor, Tensor]:
            split = split_backward() if self._last_kind == "weights" else _NOTHING
            with split:
                output = result = part.stage(held.x, microbatch.context)
            if part.is_last:
                result = plan.loss(output, microbatch, batch.valid_targets)
            held.result, held.trains = result, result.requires_grad
            return output.detach(), result.detach()

        if received is None:
            held = Held(first_input(microbatch))
        else:
            held = Held(received.detach().requires_grad_(part.upstream_trains), received)
        plan.timer.begin("forward", m, part.place)
        held, (output, result) = self._actions.run(action, held, work)
        plan.timer.end()
        if part.is_last:
            outputs.append(output)
            losses.append(result)
        elif links.activations_out is not None:
            links.activations_out.send(output)
        return held

    def _backward(self, links: StageTransfers, action: Action, held: Held) -> None:
        """Backward of inputs alone, as far as the layers can, under split backward."""
        timer, m, part = self.plan.timer, action.microbatch, links.part

        def work(held: Held) -> tuple[()]:
            result, held.result = held.result, None
            assert result is not None
            splits = self._last_kind == "weights"
            deferring = deferring_to(held.deferred) if splits else _NOTHING
            with deferring:
                backward(result, held.gradient)
            return ()

        if links.gradients_in is not None:
            timer.begin("wait", m)
            held.gradient = links.gradients_in.take()
            timer.end()
        if held.trains:
            timer.begin("backward", m, part.place)
            self._actions.run(action, held, work)
            timer.end()
        if links.gradients_out is not None:
            assert isinstance(held.x, Tensor)
            if held.x.grad is None:
                raise GnnhpcError(
                    f"no gradient goes from layer {part.stage.specs[0].name} to the stage before: "
                    "the output of its stage does not depend on its input, as after detach() or "
                    "under no_grad()"
                )
            links.gradients_out.send(held.x.grad)

    def _weights(self, links: StageTransfers, action: Action, held: Held) -> None:
        """The gradients of weights that the micro-batch's backward has left."""

        def work(held: Held) -> tuple[()]:
            compute_deferred(held.deferred)
            held.deferred.clear()
            return ()

        if held.trains:
            self.plan.timer.begin("weights", action.microbatch, links.part.place)
            self._actions.run(action, held, work)
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

    def __init__(self, plan: StagePlan, actions: Actions) -> None:
        self.plan = plan
        self._actions = actions
        self.links = transfers_of(plan, training=False)
        self.order = plan.order(training=False)

    def run(self, batch: Batch) -> Sequence[Tensor]:
        timer = self.plan.timer
        batch = self._actions.begin("test", batch)
        outputs: list[Tensor] = []
        for links in self.links:
            links.expect(batch)
        limited = [receiver for links in self.links for receiver in links.limited]
        with torch.no_grad():
            for done, action in enumerate(self.order):
                for receiver in limited:
                    receiver.allow(done)
                links = self.links[action.virtual_stage]
                output = self._forward(links, batch.microbatches[action.microbatch], action)
                if links.activations_out is None:
                    outputs.append(output)
            timer.begin("wait")
            for links in self.links:
                links.flush()
            timer.end()
        return outputs

    def _forward(self, links: StageTransfers, microbatch: MicroBatch, action: Action) -> Tensor:
        timer, m, part = self.plan.timer, action.microbatch, links.part
        received = received_input(links, m)

        def work(held: Held) -> tuple[Tensor]:
            return (part.stage(held.x, microbatch.context),)

        held = Held(first_input(microbatch) if received is None else received, received)
        timer.begin("forward", m, part.place)
        _, (output,) = self._actions.run(action, held, work)
        timer.end()
        memory = output.untyped_storage().data_ptr()
        if received is not None and memory == received.untyped_storage().data_ptr():
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
