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


@defect("an activation one micro-batch late", words="outputs: block1.grapher")
def stale_activation() -> None:
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
    "a receive buffer reused before its backward",
    words="the input of block1.grapher, the first layer of its stage, was overwritten",
    at=(Receiver, "take"),
)
def buffer_reused(original: Any, receiver: Receiver) -> Tensor:
    buffer: Tensor = original(receiver)
    if rank() == 1:
        receiver._buffers[0].data.copy_(buffer)
        buffer.data = receiver._buffers[0].data
    return buffer


@defect(
    "a slot of shared memory overwritten before it is read",
    words="outputs: block1.grapher",
    at=(SharedReceiver, "open"),
)
def slot_overwritten(original: Any, receiver: SharedReceiver) -> None:
    """The receiver counts one slot fewer than the sender."""
    original(receiver)
    assert receiver._slots is not None
    address, count, slot_bytes = receiver._slots._place
    receiver._slots._place = (address, count - 1, slot_bytes)


@defect("a gradient sent to the next micro-batch", words="the gradient of block0")
def gradient_exchanged() -> None:
    held: dict[Sender, Tensor] = {}

    def delayed(original: Any, sender: Sender, tensor: Tensor) -> None:
        own = tensor.clone()
        original(sender, held.get(sender, own) if rank() == 1 else own)
        held[sender] = own

    around(Sender, "send", delayed)


@defect(
    "no gradient crosses the cut of torch's schedule",
    cell=cells.VIG_TORCH,
    words="backward does not reach it",
)
def cut_off_in_torch() -> None:
    """A second schedule on the same stage once switched the communication of backward off."""

    def last_alone(original: Any, stage: TimedStage, *args: Any, **kwargs: Any) -> None:
        if stage.is_last:
            original(stage, *args, **kwargs)

    replace(TimedStage, "get_bwd_recv_ops", lambda *_: [])
    replace(TimedStage, "get_bwd_send_ops", lambda *_: [])
    around(TimedStage, "backward_one_chunk", last_alone)


@defect("activations sent in half precision", words="outputs: block1.grapher", at=(Sender, "send"))
def half_precision(original: Any, sender: Sender, tensor: Tensor) -> None:
    original(sender, tensor.to(torch.bfloat16).to(tensor.dtype))


def scale_last_backward(factor: float) -> None:
    calls = [0]

    def scaled(original: Any, result: Tensor, gradient: Tensor | None) -> None:
        calls[0] += 1
        last = calls[0] % 4 == 0
        gradient = torch.ones_like(result) if gradient is None else gradient
        original(result, gradient * (factor if last else 1.0))

    around(native, "backward", scaled)


@defect("the backward of one micro-batch left out", words="the gradient of readout differs")
def backward_left_out() -> None:
    scale_last_backward(0.0)


@defect("the backward of one micro-batch taken twice", words="the gradient of readout differs")
def backward_twice() -> None:
    scale_last_backward(2.0)


@defect(
    "one micro-batch wrong in one step, as by a race",
    mechanism="equivalent-cells",
    words="step 6",
    how="beside",
)
def race() -> None:
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
    "gradients of one stage scaled in a few late steps",
    cell=cells.GAT.but(train_steps=30, test_every=None),
    mechanism="equivalent-cells",
    words="gradient norm of step 20",
    how="beside",
    at=(NativeEngine, "train_step"),
)
def scaled_late(original: Any, engine: NativeEngine, batch: Any) -> Any:
    """The check before the first step and the one after the last do not see it."""
    output = original(engine, batch)
    if rank() == 1 and 20 <= batch.microbatches[0].context.step < 26:
        for parameter in engine.plan.stage.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1.05)
    return output
