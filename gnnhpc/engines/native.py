"""Our own loop over a schedule: one stage's actions in order, transfers overlapping compute."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.core.schedule import in_flight, stage_order
from gnnhpc.engines.base import Plan, Trained, backward, parameters_of
from gnnhpc.engines.gradients import Gradients
from gnnhpc.engines.transfer import Inbox, Outbox


class Links:
    """The four ends of a stage: activations in and out, gradients in and out."""

    def __init__(self, plan: Plan, *, training: bool) -> None:
        mesh, stages = plan.mesh, plan.mesh.layout.stages
        assert mesh.forward is not None
        assert mesh.backward is not None
        held = (
            in_flight(plan.schedule, mesh.stage, stages, plan.microbatches) + 1 if training else 2
        )
        buffers = min(held, plan.microbatches)
        self.activations_in = (
            None
            if mesh.is_first
            else Inbox(
                mesh.neighbour(-1), mesh.forward, plan.input_shape, plan.dtype, mesh.device, buffers
            )
        )
        self.activations_out = None if mesh.is_last else Outbox(mesh.neighbour(1), mesh.forward)
        learns = plan.upstream_learns or bool(parameters_of(plan.stage))
        self.gradients_in = (
            None
            if mesh.is_last or not training or not learns
            else Inbox(
                mesh.neighbour(1), mesh.backward, plan.output_shape, plan.dtype, mesh.device, 2
            )
        )
        self.gradients_out = (
            None
            if mesh.is_first or not training or not plan.upstream_learns
            else Outbox(mesh.neighbour(-1), mesh.backward)
        )

    def expect(self, count: int) -> None:
        for inbox in (self.activations_in, self.gradients_in):
            if inbox is not None:
                inbox.expect(count)

    def flush(self) -> None:
        for outbox in (self.activations_out, self.gradients_out):
            if outbox is not None:
                outbox.flush()


class NativeEngine:
    """Plays `gnnhpc.core.schedule.stage_order` with real tensors."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.training = Links(plan, training=True)
        self.forward_only = ForwardOnly(plan)
        self.order = stage_order(
            plan.schedule, plan.mesh.stage, plan.mesh.layout.stages, plan.microbatches
        )
        self.gradients = Gradients(plan.stage, plan.mesh, plan.timer)

    def train_step(self, inputs: Tensor | None, targets: Tensor | None) -> Trained:
        plan, timer, links = self.plan, self.plan.timer, self.training
        xs, ts = plan.inputs(inputs), plan.targets(targets)
        held: dict[int, tuple[Tensor, Tensor]] = {}
        outputs: list[Tensor] = []
        losses: list[Tensor] = []
        links.expect(plan.microbatches)
        for action in self.order:
            m = action.microbatch
            if action.kind == "forward":
                x = self._input(xs, m)
                with timer.span("forward", m):
                    output = plan.stage(x, torch.tensor([m]))
                    result = plan.loss(output, ts[m]) if plan.mesh.is_last else output
                held[m] = (x, result)
                if plan.mesh.is_last:
                    outputs.append(output.detach())
                    losses.append(result.detach())
                elif links.activations_out is not None:
                    links.activations_out.send(output.detach())
            else:
                self._backward(m, *held.pop(m))
        with timer.span("wait"):
            links.flush()
        self.gradients.average()
        return Trained(outputs, losses)

    def _input(self, xs: list[Tensor], m: int) -> Tensor:
        inbox = self.training.activations_in
        if inbox is None:
            return xs[m]
        with self.plan.timer.span("wait", m):
            x = inbox.take()
        return x.detach().requires_grad_(self.plan.upstream_learns)

    def _backward(self, m: int, x: Tensor, result: Tensor) -> None:
        timer, links = self.plan.timer, self.training
        gradient = None
        if links.gradients_in is not None:
            with timer.span("wait", m):
                gradient = links.gradients_in.take()
        if result.requires_grad:
            with timer.span("backward", m):
                backward(result, gradient)
                timer.layer_backward(None, timer.clock.mark())
        if links.gradients_out is not None:
            assert x.grad is not None
            links.gradients_out.send(x.grad)
        if links.gradients_in is not None and gradient is not None:
            links.gradients_in.release(gradient)
        if links.activations_in is not None:
            links.activations_in.release(x.detach())

    def evaluate(self, inputs: Tensor | None) -> Sequence[Tensor]:
        return self.forward_only.run(inputs)


class ForwardOnly:
    """Evaluation through the same stages, apart from whatever trains them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.links = Links(plan, training=False)

    def run(self, inputs: Tensor | None) -> Sequence[Tensor]:
        plan, timer, links = self.plan, self.plan.timer, self.links
        xs = plan.inputs(inputs)
        outputs: list[Tensor] = []
        links.expect(plan.microbatches)
        with torch.no_grad():
            for m in range(plan.microbatches):
                if links.activations_in is None:
                    x = xs[m]
                else:
                    with timer.span("wait", m):
                        x = links.activations_in.take()
                with timer.span("forward", m):
                    output = plan.stage(x, torch.tensor([m]))
                if links.activations_out is None:
                    outputs.append(output)
                else:
                    links.activations_out.send(output)
                if links.activations_in is not None:
                    links.activations_in.release(x)
            with timer.span("wait"):
                links.flush()
        return outputs
