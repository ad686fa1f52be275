"""Activations and gradients: stale, re-used, dropped, doubled."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gnnhpc.engines import native
from gnnhpc.engines.ddp_gradients import DdpReplicas
from gnnhpc.engines.gradient_sync import Gradients
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.part_links import PartLinks
from gnnhpc.engines.torch_pipelining import TimedStage
from gnnhpc.engines.transfer import Receiver, Sender
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, rank, replace

KIND = "activations and gradients"
defect = functools.partial(planted, kind=KIND)


@defect("stale activation: one micro-batch late", setting=settings.VIG)
def stale_activation() -> None:
    held: dict[int, Tensor] = {}

    def late(true: Any, receiver: Receiver) -> Tensor:
        buffer: Tensor = true(receiver)
        if rank() == 1:
            before = held.get(id(receiver), buffer)
            held[id(receiver)] = buffer.detach().clone()
            buffer.data.copy_(before)
        return buffer

    around(Receiver, "take", late)


@defect("stale activation, later in the run", setting=settings.VIG)
def stale_late() -> None:
    steps = Steps()
    held: dict[int, Tensor] = {}

    def late(true: Any, receiver: Receiver) -> Tensor:
        buffer: Tensor = true(receiver)
        if rank() == 1:
            before = held.get(id(receiver), buffer)
            held[id(receiver)] = buffer.detach().clone()
            if steps.late:
                buffer.data.copy_(before)
        return buffer

    around(Receiver, "take", late)


@defect("a receive buffer re-used before its backward", setting=settings.VIG)
def buffer_reused() -> None:
    def into_one(true: Any, receiver: Receiver) -> Tensor:
        buffer: Tensor = true(receiver)
        if rank() == 1:
            receiver._buffers[0].data.copy_(buffer)
            buffer.data = receiver._buffers[0].data
        return buffer

    around(Receiver, "take", into_one)


@defect("a gradient sent back to the wrong micro-batch", setting=settings.VIG)
def gradient_swapped() -> None:
    held: list[Tensor] = []

    def delayed(true: Any, sender: Sender, tensor: Tensor) -> None:
        if rank() == 1:
            held.append(tensor.clone())
            tensor = held[-2] if len(held) > 1 else tensor
            del held[:-1]
        true(sender, tensor)

    around(Sender, "send", delayed)


@defect("activations sent in half precision", setting=settings.VIG)
def half_precision() -> None:
    around(
        Sender,
        "send",
        lambda true, sender, tensor: true(sender, tensor.to(torch.bfloat16).to(tensor.dtype)),
    )


@defect("backward of one micro-batch dropped", setting=settings.VIG)
def dropped() -> None:
    def only_others(true: Any, result: Tensor, gradient: Tensor | None) -> None:
        only_others.calls += 1  # type: ignore[attr-defined]
        zero = torch.zeros_like(result) if gradient is None else torch.zeros_like(gradient)
        true(result, zero if only_others.calls % 4 == 0 else gradient)  # type: ignore[attr-defined]

    only_others.calls = 0  # type: ignore[attr-defined]
    around(native, "backward", only_others)


@defect("backward of one micro-batch taken twice", setting=settings.VIG)
def doubled() -> None:
    def twice(true: Any, result: Tensor, gradient: Tensor | None) -> None:
        twice.calls += 1  # type: ignore[attr-defined]
        one = torch.ones_like(result) if gradient is None else gradient
        true(result, one * 2 if twice.calls % 4 == 0 else gradient)  # type: ignore[attr-defined]

    twice.calls = 0  # type: ignore[attr-defined]
    around(native, "backward", twice)


@defect("no gradient crosses the cut", setting=settings.VIG)
def no_backward_communication() -> None:
    """Raffi 1: gradients end at the cut."""

    def one_way(true: Any, links: PartLinks, *args: Any, **kwargs: Any) -> None:
        true(links, *args, **kwargs)
        links.gradients_in = links.gradients_out = None

    def only_last(true: Any, engine: NativeEngine, *args: Any) -> None:
        if engine.plan.mesh.has_loss:
            true(engine, *args)

    around(PartLinks, "__init__", one_way)
    around(NativeEngine, "_backward", only_last)


@defect("no gradient crosses the cut, later in the run", setting=settings.VIG)
def cut_off_late() -> None:
    steps = Steps()

    def zeroed(true: Any, sender: Sender, tensor: Tensor) -> None:
        true(sender, torch.zeros_like(tensor) if rank() == 1 and steps.late else tensor)

    around(Sender, "send", zeroed)


@defect("no gradient crosses the cut, of torch's schedule", setting=settings.VIG_TORCH)
def no_backward_communication_of_torch() -> None:
    """Raffi 1, as it came about: a second schedule switched the first stage's share off."""

    def only_last(true: Any, stage: TimedStage, chunk: int, *args: Any, **kwargs: Any) -> None:
        if stage.is_last:
            true(stage, chunk, *args, **kwargs)

    replace(TimedStage, "get_bwd_recv_ops", lambda *_: [])
    replace(TimedStage, "get_bwd_send_ops", lambda *_: [])
    around(TimedStage, "backward_one_chunk", only_last)


@defect("stale activation, of torch's schedule", setting=settings.VIG_TORCH)
def stale_of_torch() -> None:
    held: dict[int, Tensor] = {}

    def late(true: Any, stage: TimedStage, chunk: int, *args: Any, **kwargs: Any) -> Any:
        received = stage.args_recv_info[chunk] if not stage.is_first else ()
        for info in received:
            buffer = info.buffer
            before = held.get(stage.stage_index, buffer.detach().clone())
            held[stage.stage_index] = buffer.detach().clone()
            buffer.data.copy_(before)
        return true(stage, chunk, *args, **kwargs)

    around(TimedStage, "forward_one_chunk", late)


@defect("activations sent in single precision, not double", setting=settings.VIG_DOUBLE)
def single_precision() -> None:
    around(
        Sender,
        "send",
        lambda true, sender, tensor: true(sender, tensor.to(torch.float32).to(tensor.dtype)),
    )


@defect("gradients not shared by torch's replicas", setting=settings.VIG_TORCH_REPLICAS)
def not_shared_by_torch() -> None:
    def alone(true: Any, replicas: DdpReplicas, bucket: Any) -> Any:
        replicas.reductions += 1
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    around(DdpReplicas, "reduce", alone)


@defect("one wrong micro-batch in one step of the run", setting=settings.VIG)
def once() -> None:
    steps = Steps()

    def wrong_once(true: Any, sender: Sender, tensor: Tensor) -> None:
        true(sender, tensor * 1.01 if rank() == 0 and steps.taken == 7 else tensor)

    around(Sender, "send", wrong_once)


@defect("gradients not shared by the replicas", setting=settings.VIG_REPLICAS)
def not_shared() -> None:
    def alone(true: Any, gradients: Gradients) -> None:
        gradients.reductions += 1

    around(Gradients, "average", alone)


@defect("gradients shared before the last micro-batch", setting=settings.VIG_REPLICAS)
def shared_early() -> None:
    def early(true: Any, gradients: Gradients) -> None:
        before = [flat.clone() for flat in gradients.flats]
        true(gradients)
        for flat, old in zip(gradients.flats, before, strict=True):
            flat.add_(old, alpha=0.1)

    around(Gradients, "average", early)


@defect("one replica's gradient for all", setting=settings.VIG_REPLICAS)
def one_for_all() -> None:
    def first_only(true: Any, gradients: Gradients) -> None:
        for flat in gradients.flats:
            flat.mul_(2.0 if rank() == 0 else 0.0)
        true(gradients)

    around(Gradients, "average", first_only)
