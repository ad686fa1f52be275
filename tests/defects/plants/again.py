"""torchgpipe's engine, and forwards that are computed again in backward."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from gnnhpc.core import schedule
from gnnhpc.engines import torchgpipe, torchgpipe_partition
from gnnhpc.engines.gradient_sync import Gradients
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.timing import StepTimer
from gnnhpc.engines.torchgpipe import TorchgpipeEngine
from gnnhpc.engines.torchgpipe_partition import Partition, PresentStep
from gnnhpc.models import batchnorm, recomputation
from gnnhpc.models.context import Context
from gnnhpc.models.recomputation import is_recomputing
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, rank, replace

KIND = "torchgpipe, and forwards computed again"
defect = functools.partial(planted, kind=KIND)


@contextlib.contextmanager
def keeping_nothing(modules: Any) -> Iterator[None]:
    """Says that a forward is computed again, and lets it change buffers."""
    recomputation._of_thread.recomputing = True
    yield
    recomputation._of_thread.recomputing = False


@defect("a partition takes another micro-batch's edges", setting=settings.GAT_GPIPE)
def other_edges() -> None:
    def other(true: Any, present: PresentStep, microbatch: int, device: Any) -> Context:
        assert present.batch is not None
        last = len(present.batch.microbatches) - 1
        context: Context = true(present, microbatch, device)
        graph = true(present, last - microbatch, device).graph
        return dataclasses.replace(context, graph=graph)

    around(PresentStep, "context", other)


@defect("forwards computed again of the first micro-batch, not the last", setting=settings.GPIPE)
def again_in_forward_order() -> None:
    def first(partition: Partition, number: Tensor) -> int:
        if is_recomputing():
            microbatch = partition._again.pop(0)
        else:
            microbatch, partition._forwards = partition._forwards, partition._forwards + 1
            partition._again.append(microbatch)
        partition.present.called.append((microbatch, number))
        return microbatch

    replace(Partition, "_take", first)


@defect("a micro-batch without a backward under torchgpipe", setting=settings.GPIPE)
def no_last_backward() -> None:
    def all_but_one(true: Any, engine: TorchgpipeEngine, losses: Sequence[Tensor]) -> None:
        true(engine, losses[:-1])

    around(TorchgpipeEngine, "_backward", all_but_one)


@defect("a micro-batch without a backward under torchgpipe, later", setting=settings.GPIPE)
def no_last_backward_late() -> None:
    steps = Steps()

    def all_but_one(true: Any, engine: TorchgpipeEngine, losses: Sequence[Tensor]) -> None:
        true(engine, losses[:-1] if steps.late else losses)

    around(TorchgpipeEngine, "_backward", all_but_one)


@defect("replicas of torchgpipe that share no gradients", setting=settings.GPIPE_REPLICAS)
def replicas_apart() -> None:
    around(Gradients, "average", lambda true, gradients: None)


def drawn_anew(true: Any, part: Stage, x: Any, context: Context) -> Tensor:
    """A stage's forward, with another step's masks where it is computed again."""
    if is_recomputing():
        context = dataclasses.replace(context, step=context.step + 1)
    output: Tensor = true(part, x, context)
    return output


@defect("dropout drawn anew in a forward computed again", setting=settings.GAT_GPIPE)
def other_masks() -> None:
    around(Stage, "forward", drawn_anew)


@defect("dropout drawn anew in our own forward computed again", setting=settings.GAT_AGAIN)
def other_masks_in_ours() -> None:
    around(Stage, "_through_layers", drawn_anew)


@defect("running statistics moved again by a forward computed again", setting=settings.GPIPE)
def statistics_twice() -> None:
    replace(torchgpipe_partition, "recomputing", keeping_nothing)
    batchnorm.is_recomputing = lambda: False


@defect("forwards not computed again where they were asked for", setting=settings.VIG_AGAIN)
def kept_after_all() -> None:
    replace(schedule, "recomputed_microbatches", lambda checkpoint, microbatches: range(0))


@defect("forwards computed again unasked", setting=settings.VIG)
def again_unasked() -> None:
    replace(schedule, "recomputed_microbatches", lambda checkpoint, microbatches: range(4))


@defect("torchgpipe told to keep all activations", setting=settings.GPIPE)
def gpipe_keeps_all() -> None:
    def keeps(*args: Any, **kwargs: Any) -> Any:
        return true(*args, **(kwargs | {"activation_checkpointing": "never"}))

    true = torchgpipe.GPipe
    torchgpipe.GPipe = keeps  # type: ignore[misc,assignment]


@defect("one chunk where torchgpipe was to make four", setting=settings.GPIPE)
def one_chunk() -> None:
    def one(*args: Any, **kwargs: Any) -> Any:
        return true(*args, **(kwargs | {"chunks": 1}))

    true = torchgpipe.GPipe
    torchgpipe.GPipe = one  # type: ignore[misc,assignment]


@defect("time of forwards computed again not told", setting=settings.VIG_AGAIN)
def time_not_told() -> None:
    replace(StepTimer, "recomputed", lambda timer, start, end: None)


@defect("time of forwards computed again told twice on one stage", setting=settings.VIG_AGAIN)
def time_told_twice() -> None:
    def twice(true: Any, timer: StepTimer, start: Any, end: Any) -> None:
        for _ in range(2 if rank() == 0 else 1):
            true(timer, start, end)

    around(StepTimer, "recomputed", twice)
