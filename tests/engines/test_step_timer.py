"""Spans of a step, and nothing else within it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.engines.engine import backward, first_input
from gnnhpc.engines.step_timer import Span, StepTimer, StepTimes
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.training.setup import TrainingParts
from tests.engines.steps import parts_of
from tests.tools.cells import gat, vig

CPU = torch.device("cpu")


def test_spans_follow_one_another_and_add_up_with_the_rest() -> None:
    timer = StepTimer(CPU)
    timer.start()
    with timer.span("forward", 0):
        time.sleep(0.01)
    timer.begin("wait", 1)
    timer.end()
    with timer.span("backward", 0, 1):
        assert timer.activity()[1] == "backward of micro-batch 0"
    timer.begin_allreduce()
    timer.end()
    times = timer.stop()
    assert times.spans is not None
    assert [(s.name, s.microbatch, s.virtual_stage) for s in times.spans] == [
        ("forward", 0, 0),
        ("wait", 1, 0),
        ("backward", 0, 1),
        ("allreduce", None, 0),
    ]
    assert times.gradients_ready_s == times.spans[3].start_s
    parts = [*map(times.total, ("forward", "backward", "allreduce")), times.rest_s]
    assert sum(each or 0.0 for each in parts) == pytest.approx(times.wall_s)


def test_a_step_waits_for_its_own_streams_of_all_its_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another stream may be sampling the next mini-batch, whose time is not the step's."""
    waited: list[torch.device] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.synchronize = lambda: waited.append(device)

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("waits for all streams"))
    devices = torch.device("cuda", 0), torch.device("cuda", 1)
    timer = StepTimer(*devices)
    timer.start()
    timer.synchronize()
    assert timer.stop().spans is None
    assert waited == [*devices]


def test_waiting_for_a_late_replica_is_no_all_reduce() -> None:
    for last_ready_s, spans in (
        (1.5, [("wait", 1.0, 1.5), ("allreduce", 1.5, 2.0)]),
        (0.5, [("allreduce", 1.0, 2.0)]),
        (9.0, [("wait", 1.0, 2.0)]),
    ):
        times = StepTimes(2.0, [Span("allreduce", None, 1.0, 2.0)], gradients_ready_s=1.0)
        times.count_late_replicas_as_waiting(last_ready_s)
        assert [(s.name, s.start_s, s.end_s) for s in times.spans or ()] == spans


def operations(work: Callable[[], object]) -> Counter[str]:
    """All that torch's profiler sees, by name: operators and nodes of the backward."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        work()
    return Counter(event.name for event in profiler.events())


def operations_of_steps(parts: TrainingParts) -> list[Counter[str]]:
    """What the training loop computes between the barriers of each of its training steps."""
    found = []

    class Profiled(TrainingLoop):
        def _train(self, batch: Batch):  # type: ignore[no-untyped-def]
            output = []
            found.append(operations(lambda: output.append(TrainingLoop._train(self, batch))))
            return output[0]

    Profiled(parts).run()
    return found


def bare_step(parts: TrainingParts, batch: Batch) -> None:
    """The same step without timer, engine and loop."""
    assert parts.optimizer is not None
    parts.engine.gradients.zero()
    for microbatch in batch.microbatches:
        output = parts.stage(first_input(microbatch), microbatch.context)
        loss = parts.plan.loss(output, microbatch, batch.valid_targets)
        backward(loss, None)
        output.detach(), loss.detach()
    parts.stage.end_minibatch()
    parts.optimizer.step()


@pytest.mark.parametrize(
    "experiment",
    [gat(microbatches=2), vig(microbatches=2, batchnorm="deferred")],
    ids=["gat", "vig"],
)
def test_a_step_is_the_step_and_nothing_else(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an operation, and so no wait for a value, nor a hook; profiled steps have hooks."""
    hooked = []
    register = Tensor.register_hook
    monkeypatch.setattr(Tensor, "register_hook", lambda *args: hooked.append(1) or register(*args))
    experiment = experiment.model_copy(update={"train_steps": 8, "test_steps": 0})
    parts = parts_of(experiment)
    steps = operations_of_steps(parts)
    assert len(steps) == 8
    assert len(hooked) > 0
    hooked.clear()
    parts.stage.train()
    with parts.batches.open("train", 0, 1) as batches:
        batch = next(batches)
        bare = operations(lambda: bare_step(parts, batch))
    first = experiment.warmup_steps
    ordinary = [*steps[1:first], *steps[first + experiment.profiled_steps(0) :]]
    assert ordinary
    assert ordinary == [bare] * len(ordinary)
    assert not hooked
    tables = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    assert not any(getattr(each, table) for each in parts.stage.modules() for table in tables)
