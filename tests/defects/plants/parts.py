"""Parts of a step's time: what is booked where, and what the clock holds."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from gnnhpc.engines.autograd import backward
from gnnhpc.engines.ddp_gradients import DdpReplicas
from gnnhpc.engines.device_memory import reset_peak
from gnnhpc.engines.gradient_sync import Gradients
from gnnhpc.engines.native import Held, NativeEngine
from gnnhpc.engines.part_links import PartLinks
from gnnhpc.engines.sequential import SequentialEngine
from gnnhpc.engines.timing import OpenSpan, StepTimer, StepTimes
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, rank, replace

KIND = "parts of a step's time"
defect = functools.partial(planted, kind=KIND)


def start_otherwise(before_beginning: Callable[[Trainer], None]) -> None:
    """Begin each step with the clock, and then with this instead of the barrier."""

    def start(trainer: Trainer) -> float:
        trainer.observer.before_step(trainer.timer.storage_cpu_s)
        reset_peak(trainer.mesh.devices)
        trainer.timer.prepare()
        trainer.timer.start()
        before_beginning(trainer)
        started = time.perf_counter()
        trainer.observer.step_began()
        return started

    replace(Trainer, "_start_step", start)


@defect("the clock started before the ranks have met", setting=settings.VIG)
def started_early() -> None:
    def meet_late(trainer: Trainer) -> None:
        time.sleep(0.002)
        trainer._meet()

    start_otherwise(meet_late)


@defect("no barrier at the beginning of a step", setting=settings.VIG)
def not_met() -> None:
    start_otherwise(lambda trainer: None)


@defect("the optimizer in no span", setting=settings.VIG)
def optimizer_untimed() -> None:
    def span(true: Any, timer: StepTimer, name: str, *args: Any) -> Any:
        return contextlib.nullcontext() if name == "optimizer" else true(timer, name, *args)

    around(StepTimer, "span", span)


@defect("the all-reduce in no span", setting=settings.VIG_REPLICAS)
def sharing_untimed() -> None:
    def average(gradients: Gradients) -> None:
        for flat in gradients.flats if gradients.mesh.replicas is not None else ():
            flat.div_(gradients.mesh.layout.replicas)
            gradients.mesh.sum_over_replicas(flat)
            gradients.reductions += 1

    replace(Gradients, "average", average)


@defect("the all-reduce of torch's replicas in no span", setting=settings.VIG_TORCH_REPLICAS)
def torch_sharing_untimed() -> None:
    def reduce(replicas: DdpReplicas, bucket: Any) -> Any:
        replicas.reductions += 1
        return allreduce_hook(replicas.group, bucket)

    replace(DdpReplicas, "reduce", reduce)


@defect("waiting for a later replica booked as all-reduce", setting=settings.VIG_REPLICAS)
def wait_as_allreduce() -> None:
    def step(true: Any, engine: SequentialEngine, *args: Any) -> Any:
        if rank() == 1:
            time.sleep(0.02)
        return true(engine, *args)

    around(SequentialEngine, "train_step", step)
    replace(StepTimes, "wait_for_replicas", lambda times, last: None)


@defect(
    "all-reduces counted from the last arrival of all stages", setting=settings.VIG_PARTS_REPLICAS
)
def last_arrival_of_all() -> None:
    """Stages come to their all-reduces at different times."""
    last: list[float] = []

    def gather(true: Any, trainer: Trainer, *args: Any) -> Any:
        arrival_s = torch.tensor([args[-1].arrival_s or 0.0], dtype=torch.float64)
        last[:] = [float(trainer.mesh.gather(arrival_s).max())]
        return true(trainer, *args)

    around(Trainer, "_gather_metrics", gather)
    around(StepTimes, "wait_for_replicas", lambda true, times, _last_s: true(times, last[0]))


@defect("waiting for a gradient booked as backward", setting=settings.VIG)
def wait_as_backward() -> None:
    def received(engine: NativeEngine, links: PartLinks, m: int, held: Held) -> None:
        timer, result = engine.plan.timer, held.result
        held.result = None
        assert result is not None
        if result.requires_grad:
            with timer.span("backward", m):
                if links.gradients_in is not None:
                    held.gradient = links.gradients_in.take()
                backward(result, held.gradient)
                timer.layer_backward(None, timer.clock.mark())
        if links.gradients_out is not None:
            assert isinstance(held.x, Tensor)
            assert held.x.grad is not None
            links.gradients_out.send(held.x.grad)

    def step(true: Any, engine: NativeEngine, *args: Any) -> Any:
        # The last stage is late, so that there is something to wait for.
        if rank() == 1:
            time.sleep(0.02)
        return true(engine, *args)

    replace(NativeEngine, "_backward", received)
    around(NativeEngine, "train_step", step)


def spans_that_wait(kind: str, of_rank: int) -> None:
    """As of a send that does not return at once."""

    def end(true: Any, timer: StepTimer, opened: OpenSpan) -> None:
        if opened.name == kind and rank() == of_rank:
            time.sleep(0.005)
        true(timer, opened)

    around(StepTimer, "end", end)


@defect("waiting after a stage has computed booked as forward", setting=settings.VIG)
def wait_after_forward() -> None:
    spans_that_wait("forward", 0)


@defect("waiting after the loss booked as forward", setting=settings.VIG)
def wait_after_loss() -> None:
    spans_that_wait("forward", 1)


@defect("waiting after a stage has gone back booked as backward", setting=settings.VIG)
def wait_after_backward() -> None:
    spans_that_wait("backward", 1)


@defect("waiting after the first stage has gone back booked as backward", setting=settings.VIG)
def wait_after_first_backward() -> None:
    spans_that_wait("backward", 0)


@defect("each layer's forward counted from where the stage began", setting=settings.VIG)
def layers_from_the_start() -> None:
    first: dict[str, Any] = {}

    def mark(true: Any, timer: StepTimer, name: str, start: Any, end: Any) -> None:
        names = {layer for layer, *_ in timer._forward}
        first["start"] = start if name in names or not names else first["start"]
        true(timer, name, first["start"], end)

    def mark_all(_true: Any, timer: StepTimer, names: Sequence[str], marks: Sequence[Any]) -> None:
        for number, name in enumerate(names):
            timer.layer_forward(name, marks[number], marks[number + 1])

    around(StepTimer, "layer_forward", mark)
    around(StepTimer, "layers_forward", mark_all)


@defect("each layer's forward told as that of the next", setting=settings.GAT)
def layers_of_the_next() -> None:
    def layers(true: Any, timer: StepTimer, *args: Any) -> Any:
        found = true(timer, *args)
        seconds = [forward for forward, _ in found.values()]
        shifted = zip(found.items(), [*seconds[1:], *seconds[:1]], strict=True)
        return {name: [forward, backward] for (name, (_, backward)), forward in shifted}

    around(StepTimer, "_layers", layers)


@defect("the end of a micro-batch's backward not marked", setting=settings.VIG)
def backward_unended() -> None:
    def mark(true: Any, timer: StepTimer, name: str | None, at: Any) -> None:
        if name is not None:
            true(timer, name, at)

    around(StepTimer, "layer_backward", mark)


@defect("processor time of more threads than the process has", setting=settings.VIG)
def more_processor_time() -> None:
    def stop(true: Any, timer: StepTimer) -> StepTimes:
        times: StepTimes = true(timer)
        times.cpu_s += 2 * times.wall_s
        return times

    around(StepTimer, "stop", stop)
