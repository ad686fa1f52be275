"""Activations and gradients between stages: stale, reused, exchanged, lost, rounded."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gnnhpc.distributed.channels import SharedReceiver
from gnnhpc.engines import native
from gnnhpc.engines.libraries.torch_pipelining import TimedStage
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.transfers import Receiver, Sender
from tests.defects import cells
from tests.defects.defect import around, planted, rank, replace

defect = functools.partial(
    planted, kind="transfers between stages", cell=cells.VIG, mechanism="engine-parity", words=""
)


@defect(words="outputs: block1.grapher")
def an_activation_one_micro_batch_late() -> None:
    held: dict[int, Tensor] = {}

    def late(original: Any, receiver: Receiver) -> Tensor:
        buffer: Tensor = original(receiver)
        if rank() == 1:
            before = held.get(id(receiver), buffer)
            held[id(receiver)] = buffer.detach().clone()
            buffer.data.copy_(before)
        return buffer

    around(Receiver, "take", late)


@defect(
    words="the input of block1.grapher, the first layer of its stage, was overwritten",
    at=(Receiver, "take"),
)
def a_receive_buffer_reused_before_its_backward(original: Any, receiver: Receiver) -> Tensor:
    buffer: Tensor = original(receiver)
    if rank() == 1:
        receiver._buffers[0].data.copy_(buffer)
        buffer.data = receiver._buffers[0].data
    return buffer


@defect(words="outputs: block1.grapher", at=(SharedReceiver, "open"))
def a_slot_overwritten_before_it_is_read(original: Any, receiver: SharedReceiver) -> None:
    """The receiver counts one slot fewer than the sender."""
    original(receiver)
    assert receiver._slots is not None
    address, count, slot_bytes = receiver._slots._place
    receiver._slots._place = (address, count - 1, slot_bytes)


@defect(words="the gradient of block0")
def a_gradient_sent_to_the_next_micro_batch() -> None:
    held: dict[Sender, Tensor] = {}

    def delayed(original: Any, sender: Sender, tensor: Tensor) -> None:
        own = tensor.clone()
        original(sender, held.get(sender, own) if rank() == 1 else own)
        held[sender] = own

    around(Sender, "send", delayed)


@defect(cell=cells.VIG_TORCH, words="backward does not reach it")
def no_gradient_crosses_a_cut_of_torch_pipelining() -> None:
    """A second schedule on the same stage once switched the communication of backward off."""

    def last_alone(original: Any, stage: TimedStage, *args: Any, **kwargs: Any) -> None:
        if stage.is_last:
            original(stage, *args, **kwargs)

    replace(TimedStage, "get_bwd_recv_ops", lambda *_: [])
    replace(TimedStage, "get_bwd_send_ops", lambda *_: [])
    around(TimedStage, "backward_one_chunk", last_alone)


@defect(words="outputs: block1.grapher", at=(Sender, "send"))
def activations_sent_in_half_precision(original: Any, sender: Sender, tensor: Tensor) -> None:
    original(sender, tensor.to(torch.bfloat16).to(tensor.dtype))


def scale_last_backward(factor: float) -> None:
    calls = [0]

    def scaled(original: Any, result: Tensor, gradient: Tensor | None) -> None:
        calls[0] += 1
        last = calls[0] % 4 == 0
        gradient = torch.ones_like(result) if gradient is None else gradient
        original(result, gradient * (factor if last else 1.0))

    around(native, "backward", scaled)


@defect(words="the gradient of readout differs")
def the_backward_of_one_micro_batch_left_out() -> None:
    scale_last_backward(0.0)


@defect(words="the gradient of readout differs")
def the_backward_of_one_micro_batch_taken_twice() -> None:
    scale_last_backward(2.0)


@defect(mechanism="equivalent-cells", words="step 6", how="beside")
def one_micro_batch_wrong_in_one_step() -> None:
    """The check before the first step and the one after the last do not see it."""
    sent = {"step": -1}

    def step(original: Any, engine: NativeEngine, batch: Any) -> Any:
        sent["step"] = batch.microbatches[0].context.step
        return original(engine, batch)

    def wrong_once(original: Any, sender: Sender, tensor: Tensor) -> None:
        wrong = rank() == 0 and sent["step"] == 6
        original(sender, tensor * 1.01 if wrong else tensor)

    around(NativeEngine, "train_step", step)
    around(Sender, "send", wrong_once)


@defect(
    cell=cells.GAT.but(train_steps=30, test_every=None),
    mechanism="equivalent-cells",
    words="gradient norm of step 20",
    how="beside",
    at=(NativeEngine, "train_step"),
)
def gradients_scaled_in_a_few_late_steps(original: Any, engine: NativeEngine, batch: Any) -> Any:
    """The check before the first step and the one after the last do not see it."""
    output = original(engine, batch)
    if rank() == 1 and 20 <= batch.microbatches[0].context.step < 26:
        for parameter in engine.plan.stage.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1.05)
    return output
