"""The transfers of a stage: activations and gradients, in and out.

Virtual stages of one rank that are neighbours in the model hand tensors over.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import torch

from gnnhpc.batches.batch import Batch
from gnnhpc.core.schedules import (
    Action,
    Kind,
    ScheduleName,
    Slot,
    in_flight,
    input_from,
    place_of_virtual_stage,
    timeline,
    virtual_stage_number,
)
from gnnhpc.distributed.channels import SHARED_MEMORY, GroupChannel, SharedReceiver, SharedSender
from gnnhpc.distributed.mesh import Direction
from gnnhpc.engines.engine import StagePlan, VirtualStagePlan, parameters_of
from gnnhpc.engines.send_receive import Handover, Receiver, Sender, host_buffer

Shared = TypeVar("Shared", SharedSender, SharedReceiver)


def transfers_of(plan: StagePlan, *, training: bool) -> list[StageTransfers]:
    """One entry a virtual stage, in order."""
    links = [StageTransfers(plan, part, training=training) for part in plan.virtual_stages]
    for one, following in itertools.pairwise(links):
        if following.part.number == one.part.number + 1:
            one.hand_over_to(following)
    # Both ends of all exist before any is waited for.
    for each in links:
        each.open()
    return links


class StageTransfers:
    """The ends of its four transfers; None where one is not needed."""

    activations_in: Receiver | Handover | None = None
    activations_out: Sender | Handover | None = None
    gradients_in: Receiver | Handover | None = None
    gradients_out: Sender | Handover | None = None

    def __init__(self, plan: StagePlan, part: VirtualStagePlan, *, training: bool) -> None:
        self.plan, self.part, self.training = plan, part, training
        self._shared: list[SharedSender | SharedReceiver] = []
        self.ways: set[str] = set()
        """How tensors come and go, in words."""
        mesh, parts, experiment = plan.mesh, len(plan.virtual_stages), plan.experiment
        place = experiment.schedule, mesh.stage, mesh.layout.stages, experiment.microbatches
        most_held = partial(in_flight, *place, virtual_stages=parts, virtual_stage=part.place)
        self._done_before = done_before_posting(*place, virtual_stages=parts, training=training)
        if not part.is_first:
            buffers = min(most_held() + 1 if training else 2, experiment.microbatches)
            self.activations_in = self._receiver("forward", -1, part.input_shape, buffers)
        if not part.is_last:
            self.activations_out = self._sender("forward", 1, part.output_shape)
            if training and (part.upstream_trains or parameters_of(part.stage)):
                buffers = most_held(first="backward") + 1
                self.gradients_in = self._receiver("backward", 1, part.output_shape, buffers)
        if not part.is_first and training and part.upstream_trains:
            self.gradients_out = self._sender("backward", -1, part.input_shape)
        receivers = (self.activations_in, self.gradients_in)
        self.limited = [r for r in receivers if isinstance(r, Receiver) and r.needs is not None]
        """The receivers that are to be notified of the stage's actions."""

    def hand_over_to(self, following: StageTransfers) -> None:
        """Connect with the next virtual stage of the model, which is on this rank too."""
        self.activations_out = following.activations_in = Handover()
        if self.training and following.part.upstream_trains:
            self.gradients_in = following.gradients_out = Handover()

    def _receiver(
        self, direction: Direction, step: int, shape: tuple[int, ...], buffers: int
    ) -> Receiver | None:
        plan, mesh = self.plan, self.plan.mesh
        channel = self._channel(SharedReceiver, direction, step, shape)
        if channel is None:
            return None
        if mesh.staged:
            hosts = [host_buffer(shape, plan.dtype, mesh.device) for _ in range(buffers)]
            return Receiver(channel, hosts, copied_to=mesh.device)
        tensors = [torch.empty(shape, dtype=plan.dtype, device=mesh.device) for _ in range(buffers)]
        # gloo's receives wait on the host, NCCL's on the device, before what it is given next.
        needs = [
            n
            for action, n in self._done_before.items()
            if (action.kind, action.virtual_stage) == (direction, self.part.place)
        ]
        return Receiver(channel, tensors, needs if mesh.links else None)

    def _sender(self, direction: Direction, step: int, shape: tuple[int, ...]) -> Sender | None:
        channel = self._channel(SharedSender, direction, step, shape)
        return None if channel is None else Sender(channel, staged=self.plan.mesh.staged)

    def _channel(
        self, shared: type[Shared], direction: Direction, step: int, shape: tuple[int, ...]
    ) -> Shared | GroupChannel | None:
        """One end towards the virtual stage before (-1) or after (1) this one, of kind `shared`
        where both ranks can share memory; None where that virtual stage is on this rank."""
        plan, mesh, number = self.plan, self.plan.mesh, self.part.number
        stages = mesh.layout.stages
        stage, _ = place_of_virtual_stage(plan.experiment.schedule, number + step, stages)
        if stage == mesh.stage:
            return None
        peer = mesh.layout.rank_of(mesh.replica, stage)
        # The tag is the same on both sides, and differs between cuts of the same two stages and
        # between the directions of a cut.
        tag = 2 * ((number + min(step, 0)) // stages) + (direction == "backward")
        by_group = GroupChannel(peer, mesh.link(direction, peer), tag)
        # A slot has room for so many rows, and NCCL's groups are there to be used.
        if peer not in mesh.peers or not plan.fixed_rows or mesh.links or mesh.staged:
            self.ways.add(mesh.transfers or "")
            return by_group
        slot_bytes = math.prod(shape) * plan.dtype.itemsize
        channel = shared(plan.experiment.microbatches, slot_bytes, mesh.peers[peer], by_group)
        self.ways.add(SHARED_MEMORY)
        self._shared.append(channel)
        return channel

    def open(self) -> None:
        """Wait for the other ends; both must have been made, or be made by another thread."""
        for channel in self._shared:
            channel.open()

    def expect(self, batch: Batch, backwards: Sequence[int] = ()) -> None:
        """`backwards` are the micro-batches in the order of their gradients."""
        count = self.plan.experiment.microbatches
        for receiver, order, changes in zip(
            (self.activations_in, self.gradients_in),
            (range(count), backwards),
            self.part.stage.row_changes,
            strict=True,
        ):
            if isinstance(receiver, Receiver):
                chunks = [] if self.plan.fixed_rows else [batch.microbatches[m] for m in order]
                rows = [each.context.chunk.rows[changes] for each in chunks]
                receiver.expect(count, rows or None)

    def flush(self) -> None:
        for sender in (self.activations_out, self.gradients_out):
            if isinstance(sender, Sender):
                sender.flush()


_TURN: Final[Mapping[Kind, int]] = {"backward": 0, "forward": 1, "weights": 2}
"""Order of kinds that begin together; gradients of weights are sent to nobody."""


def done_before_posting(
    schedule: ScheduleName,
    stage: int,
    stages: int,
    microbatches: int,
    *,
    virtual_stages: int = 1,
    training: bool = True,
) -> dict[Action, int]:
    """For each action whose input another stage sends, in the order of sending: how many actions of
    this stage are launched on the device before the receive may be posted.

    A receive of NCCL is a kernel that waits on the GPU, and later work there may have to wait for
    it: CUDA may synchronise the whole device to load a kernel or to free memory. So a stage that
    posts receives too early can wait for a stage that waits for the first one's later work.

    All actions of all stages form one line, in the order in which the schedule would begin them if
    each took equally long. A receive is posted once its stage has done every action that comes
    before the sending action in that line. Then some stage can always go on: the one whose action
    is next in the line has posted receives only for actions before it, and these have been done.
    """
    ones = [1.0] * (stages * virtual_stages)
    slots = timeline(
        *(schedule, ones, ones, microbatches),
        weights_s=ones,
        virtual_stages=virtual_stages,
        training=training,
    )
    mine = [slot.action for slot in slots if slot.stage == stage]
    receives = {
        input_from(schedule, stage, stages, virtual_stages, action): action for action in mine
    }
    found: dict[Action, int] = {}
    done = 0
    for slot in sorted(slots, key=lambda slot: _place(schedule, slot, stages)):
        if slot.stage == stage:
            done += 1
        elif (slot.stage, slot.action) in receives:
            found[receives[slot.stage, slot.action]] = done
    return found


def _place(schedule: ScheduleName, slot: Slot, stages: int) -> tuple[float, int, int]:
    """The place of a slot in the line; of slots that begin together, senders come before
    receivers."""
    kind = slot.action.kind
    number = virtual_stage_number(schedule, slot.stage, stages, slot.action.virtual_stage)
    return slot.start_s, _TURN[kind], number if kind == "forward" else -number
