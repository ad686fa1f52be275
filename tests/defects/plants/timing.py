"""Times."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from typing import Any

import torch.distributed as dist
from torch import Tensor

from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.check import observations
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines import system_counters
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.timing import Clock, StepTimer, StepTimes
from gnnhpc.records.schema import StepRecord
from gnnhpc.records.writer import RecordWriter
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, rank, replace

KIND = "timing"
defect = functools.partial(planted, kind=KIND)


def change_times(change: Any) -> None:
    around(StepTimer, "stop", lambda true, timer: change(true(timer)))


def change_record(change: Any) -> None:
    """Change each step's record on its way to the file."""

    def write(true: Any, writer: RecordWriter, *records: Any) -> None:
        true(writer, *(change(r) if isinstance(r, StepRecord) else r for r in records))

    around(RecordWriter, "write", write)


@defect("a step time that leaves the backward out", setting=settings.VIG)
def without_backward() -> None:
    change_times(lambda t: dataclasses.replace(t, wall_s=t.wall_s - t.total("backward")))


@defect("a clock at half speed", setting=settings.VIG)
def half_speed() -> None:
    """Spans and steps agree with each other, and with nothing else."""
    around(Clock, "seconds", lambda true, clock, mark: true(clock, mark) / 2)
    around(Clock, "now_s", lambda true, clock: true(clock) / 2)


@defect("step times in milliseconds", setting=settings.VIG)
def milliseconds() -> None:
    change_times(lambda t: dataclasses.replace(t, wall_s=t.wall_s / 1e3))


@defect("step times shorter by a few hundredths", setting=settings.VIG)
def a_little_shorter() -> None:
    change_times(lambda t: dataclasses.replace(t, wall_s=t.wall_s - 9e-5))


@defect("step times longer by a few hundredths", setting=settings.VIG)
def a_little_longer() -> None:
    change_times(lambda t: dataclasses.replace(t, wall_s=t.wall_s + 9e-5))


@defect("forwards shorter by a few hundredths in the record", setting=settings.VIG)
def forwards_a_little_shorter() -> None:
    def recorded(true: Any, *args: Any, **values: Any) -> None:
        less = {"forward_s": values["forward_s"] - 5e-5, "wait_s": values["wait_s"] + 5e-5}
        true(*args, **values | less)

    around(StepRecord, "__init__", recorded)


@defect("outliers replaced by the median, in silence", setting=settings.VIG)
def smoothed() -> None:
    shortest: list[float] = []

    def cut(t: StepTimes) -> StepTimes:
        shortest.append(t.wall_s)
        least = min(shortest)
        scale = least / t.wall_s
        spans = [
            dataclasses.replace(s, start_s=s.start_s * scale, end_s=s.end_s * scale)
            for s in t.spans
        ]
        return dataclasses.replace(t, wall_s=least, cpu_s=t.cpu_s * scale, spans=spans)

    change_times(cut)


@defect("the clock stopped before the last stage is done", setting=settings.VIG)
def before_barrier() -> None:
    """Rank 0's own work only: what it waits for at the end is not in its step."""

    def early(true: Any, timer: StepTimer) -> StepTimes:
        ends = [timer.clock.seconds(o.end) for o in timer._open if o.end is not None]
        times: StepTimes = true(timer)
        return dataclasses.replace(times, wall_s=max(ends) if ends else times.wall_s)

    around(StepTimer, "stop", early)


@defect("the optimizer's step outside the measured time", setting=settings.VIG)
def without_optimizer() -> None:
    def step(true: Any, trainer: Trainer, *args: Any) -> Any:
        optimizer = trainer.optimizer
        if optimizer is None:
            return true(trainer, *args)
        trainer.optimizer = None
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.zero_()
        result = true(trainer, *args)
        optimizer.step()
        trainer.optimizer = optimizer
        return result

    around(Trainer, "_train_step", step)


@defect("a negative step time", setting=settings.VIG)
def negative() -> None:
    change_times(lambda t: dataclasses.replace(t, wall_s=-t.wall_s))


@defect("a step time that is no number", setting=settings.VIG)
def no_number() -> None:
    change_times(lambda t: dataclasses.replace(t, wall_s=float("nan")))


@defect("step times halved on the way to the file", setting=settings.VIG)
def halved_in_file() -> None:
    change_record(
        lambda r: dataclasses.replace(
            r, wall_s=r.wall_s / 2, wait_s=max(0.0, r.wait_s - r.wall_s / 2)
        )
    )


@defect("slow steps recorded as looked at, so that they do not count", setting=settings.VIG)
def slow_ones_aside() -> None:
    def recorded(true: Any, *args: Any, **values: Any) -> None:
        slow = values["step"] % 3 == 0
        true(*args, **values | {"looked": values["looked"] or slow})

    around(StepRecord, "__init__", recorded)


@defect("throughput of twice the samples", setting=settings.VIG)
def twice_the_samples() -> None:
    change_record(lambda r: dataclasses.replace(r, samples=2 * r.samples))
    around(
        observations,
        "rank_observations",
        lambda true, observer, **facts: true(observer, **facts | {"samples": 2 * facts["samples"]}),
    )


@defect("throughput of the samples that two replicas share", setting=settings.VIG_REPLICAS)
def samples_of_both() -> None:
    """Each replica reports the mini-batch of both as its own."""
    around(
        ImageBatches,
        "_batch",
        lambda true, *args: dataclasses.replace(true(*args), samples=2 * true(*args).samples),
    )


@defect("no barrier at the end of a step", setting=settings.VIG)
def no_barrier() -> None:
    """Each rank's time is until it has done its own."""

    def step(true: Any, trainer: Trainer, *args: Any) -> Any:
        barriers = itertools.count()
        mesh = trainer.mesh

        def first_only() -> None:
            if next(barriers) == 0:
                Mesh.barrier(mesh)

        object.__setattr__(mesh, "barrier", first_only)
        try:
            return true(trainer, *args)
        finally:
            object.__delattr__(mesh, "barrier")

    around(Trainer, "_train_step", step)


@defect("barriers that do not wait", setting=settings.VIG)
def hasty_barriers() -> None:
    """A rank begins a step, and ends it, as soon as it has told the others that it is there."""
    told: list[Any] = []

    def barrier(mesh: Mesh) -> None:
        told.append(dist.barrier(group=mesh.control, async_op=True))
        mesh.met[0] += 1

    replace(Mesh, "barrier", barrier)


@defect("replicas' barriers that do not wait", setting=settings.VIG_REPLICAS)
def hasty_barriers_of_replicas() -> None:
    hasty_barriers()


@defect("barriers that do not wait, of ranks on two systems", setting=settings.VIG)
def hasty_barriers_of_two_systems() -> None:
    """Whose clocks may differ by anything."""
    replace(system_counters, "running_system", lambda: f"system {rank()}")
    hasty_barriers()


@defect("barriers around drawing that do not wait", setting=settings.SAMPLED_REPLICAS)
def hasty_barriers_of_drawing() -> None:
    """So a replica's own draw is timed, and not the step's, which the longest one holds up."""
    told: list[Any] = []

    def wait(trainer: Trainer) -> None:
        trainer.observer.comes()
        told.append(dist.barrier(group=trainer.mesh.control, async_op=True))
        trainer.observer.leaves()

    replace(Trainer, "_wait_for_all", wait)


@defect("the best evaluation reported as the last", setting=settings.VIG)
def best_of_all() -> None:
    def best(true: Any, trainer: Trainer, *args: Any) -> Any:
        before = trainer.final.get("test_loss", math.inf)
        result = true(trainer, *args)
        if before < trainer.final.get("test_loss", math.inf):
            trainer.final["test_loss"] = before
        return result

    around(Trainer, "_record_step", best)


@defect("waiting booked as forward", setting=settings.VIG)
def wait_as_forward() -> None:
    def busier(times: StepTimes) -> StepTimes:
        spans = [
            dataclasses.replace(s, name="forward") if s.name == "wait" else s for s in times.spans
        ]
        return dataclasses.replace(times, spans=spans)

    change_times(busier)


@defect("waiting before the loss goes back booked as backward", setting=settings.VIG)
def wait_before_loss() -> None:
    from gnnhpc.engines import native

    def backward(true: Any, result: Tensor, gradient: Tensor | None) -> None:
        if gradient is None and rank() == 1:
            time.sleep(0.01)
        true(result, gradient)

    around(native, "backward", backward)


@defect("waiting for the last rank booked as optimizer", setting=settings.VIG)
def wait_as_optimizer() -> None:
    def stop(true: Any, timer: StepTimer) -> StepTimes:
        for opened in [each for each in timer._open if each.name == "optimizer"][-1:]:
            opened.end = timer.clock.mark()
        found: StepTimes = true(timer)
        return found

    def step(true: Any, engine: NativeEngine, batch: Any) -> Any:
        trained = true(engine, batch)
        if rank() == 0:
            time.sleep(0.02)
        return trained

    around(StepTimer, "stop", stop)
    around(NativeEngine, "train_step", step)


@defect("half of the backwards booked as waiting", setting=settings.VIG)
def backward_as_wait() -> None:
    def idler(times: StepTimes) -> StepTimes:
        spans = [
            dataclasses.replace(s, name="wait")
            if s.name == "backward" and (s.microbatch or 0) % 2
            else s
            for s in times.spans
        ]
        return dataclasses.replace(times, spans=spans)

    change_times(idler)


@defect("warm-up steps measured", setting=settings.VIG)
def warm_up() -> None:
    change_record(lambda r: dataclasses.replace(r, warmup=False))
