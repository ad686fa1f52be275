"""The native engine: one stage's actions in the schedule's order, transfers beside computing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs, MicroBatch
from gnnhpc.core.early_receives import done_before_posting
from gnnhpc.core.schedule import in_flight, stage_order
from gnnhpc.engines.autograd import backward
from gnnhpc.engines.base import StagePlan, StepOutput, first_input, parameters_of
from gnnhpc.engines.flat_gradients import Gradients
from gnnhpc.engines.staged_transfer import StagedReceiver, StagedSender, host_buffers
from gnnhpc.engines.transfer import Receiver, Sender, UnevenReceiver
from gnnhpc.models.added_gradients import add_gradients_in_place
from gnnhpc.ranks.mesh import Direction


class StageLinks:
    """The transfers of a stage, activations and gradients in and out; None if not needed."""

    def __init__(self, plan: StagePlan, *, training: bool) -> None:
        self.plan = plan
        mesh, stages = plan.mesh, plan.mesh.layout.stages
        held = (
            in_flight(plan.schedule, mesh.stage, stages, plan.microbatches) + 1 if training else 2
        )
        self._done_before = done_before_posting(
            plan.schedule, mesh.stage, stages, plan.microbatches, training=training
        )
        learns = plan.upstream_trains or bool(parameters_of(plan.stage))
        self.activations_in = (
            None
            if mesh.is_first
            else self._receiver("forward", plan.input_shape, min(held, plan.microbatches))
        )
        self.activations_out = None if mesh.is_last else self._sender("forward")
        self.gradients_in = (
            None
            if mesh.is_last or not training or not learns
            else self._receiver("backward", plan.output_shape, 2)
        )
        self.gradients_out = (
            None
            if mesh.is_first or not training or not plan.upstream_trains
            else self._sender("backward")
        )

    def _receiver(self, direction: Direction, shape: tuple[int, ...], buffers: int) -> Receiver:
        plan, mesh = self.plan, self.plan.mesh
        peer = mesh.neighbour(-1 if direction == "forward" else 1)
        group = mesh.link(direction, peer)
        if mesh.staged:
            hosts = host_buffers(buffers, shape, plan.dtype, mesh.device)
            return StagedReceiver(peer, group, hosts, mesh.device)
        tensors = [torch.empty(shape, dtype=plan.dtype, device=mesh.device) for _ in range(buffers)]
        # gloo's receives wait on the host, NCCL's on the device, before what it is given next.
        needs = [n for action, n in self._done_before.items() if action.kind == direction]
        kind = Receiver if plan.fixed_rows else UnevenReceiver
        return kind(peer, group, tensors, needs if mesh.links else None)

    def _sender(self, direction: Direction) -> Sender:
        mesh = self.plan.mesh
        peer = mesh.neighbour(1 if direction == "forward" else -1)
        return (StagedSender if mesh.staged else Sender)(peer, mesh.link(direction, peer))

    def expect(self, batch: Batch, backwards: Sequence[int] = ()) -> None:
        """`backwards` are the micro-batches in the order of their gradients."""
        count = self.plan.microbatches
        first, last = self.plan.stage.row_changes
        for receiver, order, changes in (
            (self.activations_in, range(count), first),
            (self.gradients_in, backwards, last),
        ):
            if isinstance(receiver, UnevenReceiver):
                chunks = [batch.microbatches[m].context.chunk for m in order]
                receiver.expect_rows([chunk.rows[changes] for chunk in chunks])
            elif receiver is not None:
                receiver.expect(count)

    def allow(self, done: int) -> None:
        """Post what may be received once `done` actions of the stage are done."""
        for receiver in (self.activations_in, self.gradients_in):
            if receiver is not None:
                receiver.allow(done)

    def flush(self) -> None:
        for sender in (self.activations_out, self.gradients_out):
            if sender is not None:
                sender.flush()


class NativeEngine:
    """Runs the actions of `gnnhpc.core.schedule.stage_order` on tensors."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.training = StageLinks(plan, training=True)
        self.forward_only = ForwardOnly(plan)
        self.order = stage_order(
            plan.schedule, plan.mesh.stage, plan.mesh.layout.stages, plan.microbatches
        )
        self._backwards = [a.microbatch for a in self.order if a.kind == "backward"]
        self.gradients = Gradients(plan.stage, plan.mesh, plan.timer)
        add_gradients_in_place(plan.stage)

    def train_step(self, batch: Batch) -> StepOutput:
        plan, timer, links = self.plan, self.plan.timer, self.training
        plan.check(batch)
        held: dict[int, tuple[Inputs, Tensor]] = {}
        outputs: list[Tensor] = []
        losses: list[Tensor] = []
        links.expect(batch, self._backwards)
        for done, action in enumerate(self.order):
            links.allow(done)
            m = action.microbatch
            if action.kind == "forward":
                microbatch = batch.microbatches[m]
                x = self._input(microbatch, m)
                with timer.span("forward", m):
                    output = plan.stage(x, microbatch.context)
                    result = output
                    if plan.mesh.is_last:
                        result = plan.loss(output, microbatch, batch.labelled)
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
        return StepOutput(outputs, losses)

    def _input(self, microbatch: MicroBatch, m: int) -> Inputs:
        receiver = self.training.activations_in
        if receiver is None:
            return first_input(microbatch)
        with self.plan.timer.span("wait", m):
            x = receiver.take()
        return x.detach().requires_grad_(self.plan.upstream_trains)

    def _backward(self, m: int, x: Inputs, result: Tensor) -> None:
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
            assert isinstance(x, Tensor)
            assert x.grad is not None
            links.gradients_out.send(x.grad)
        if links.gradients_in is not None and gradient is not None:
            links.gradients_in.release(gradient)
        if links.activations_in is not None and isinstance(x, Tensor):
            links.activations_in.release(x.detach())

    def evaluate(self, batch: Batch) -> Sequence[Tensor]:
        return self.forward_only.run(batch)


class ForwardOnly:
    """Evaluation through the same stages, with transfers of its own."""

    def __init__(self, plan: StagePlan) -> None:
        self.plan = plan
        self.links = StageLinks(plan, training=False)

    def run(self, batch: Batch) -> Sequence[Tensor]:
        plan, timer, links = self.plan, self.plan.timer, self.links
        plan.check(batch)
        outputs: list[Tensor] = []
        links.expect(batch)
        with torch.no_grad():
            for m, microbatch in enumerate(batch.microbatches):
                links.allow(m)
                received: Tensor | None = None
                if links.activations_in is not None:
                    with timer.span("wait", m):
                        received = links.activations_in.take()
                x = first_input(microbatch) if received is None else received
                with timer.span("forward", m):
                    output = plan.stage(x, microbatch.context)
                if received is not None and _shares_memory(output, received):
                    # A stage of dropout alone hands its input on; the buffer is filled again
                    # while what was sent from it, or is still to be judged, waits.
                    output = output.clone()
                if links.activations_out is None:
                    outputs.append(output)
                else:
                    links.activations_out.send(output)
                if links.activations_in is not None and received is not None:
                    links.activations_in.release(received)
            with timer.span("wait"):
                links.flush()
        return outputs


def _shares_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
