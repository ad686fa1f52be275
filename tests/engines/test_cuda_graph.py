"""CUDA graphs as far as a CPU can show them: a simulated replay has the bits of a computed step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.engines import cuda_graph
from gnnhpc.engines.cuda_graph import why_eager
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.sequential import SequentialEngine
from gnnhpc.engines.step_timer import StepTimer
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels.vig import vig_mlp
from gnnhpc.models.layers import dropout_layer
from gnnhpc.records.schema import StepRecord
from gnnhpc.training.listeners import Listener, StepTaken
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.training.setup import TrainingParts, set_up
from tests.engines.steps import CPU
from tests.tools.backends import computed_by
from tests.tools.cells import GRAPH_MODELS, gat, sampled, vig
from tests.tools.forked import spawn
from tests.tools.pretended_gpu import SimulatedGraph, simulated

STEPS = {
    "gat, dense": gat(data={**gat().data.model_dump(), "features": 8}),
    "vig": vig(),
    "vig, deferred": vig(batchnorm="deferred"),
    **{
        " ".join(map(str, model.values())): gat(model=model, microbatches=1)
        for model in (
            *GRAPH_MODELS,
            {"name": "gat", "implementation": "pyg"},
            {"name": "gcn", "implementation": "pyg"},
        )
    },
}

FIRST, TESTED = 3, 2
"""The first training step, as of a run that resumes, and the mini-batches of an evaluation."""
PROFILED = FIRST + 2
TRAINED = [range(FIRST, FIRST + 4), range(FIRST + 4, FIRST + 6)]
"""Training steps before and after an evaluation."""


@dataclass(frozen=True)
class Trained:
    numbers: list[Tensor]
    """Losses, outputs and gradients of all steps, outputs of evaluations, buffers at the end."""
    record: dict[str, str]


def train(experiment: Experiment, mesh: Mesh, *, captured: bool, waits: bool = False) -> Trained:
    """Take some steps and an evaluation by operators of torch alone; the loss may wait for the
    device. Where some are captured, all masks have their keys in memory."""
    with pytest.MonkeyPatch.context() as patch, computed_by("torch"), simulated() as streams:
        before = streams.current
        patch.setattr(vig_mlp, "load_kernel", lambda name: None)
        patch.setattr(cuda_graph, "why_eager", lambda *_: None if captured else "off")
        if captured:
            patch.delattr(dropout_layer, "layer_mask")
        steps = {"train_steps": TRAINED[-1].stop, "test_steps": TESTED}
        parts = set_up(experiment.model_copy(update=steps), mesh, None)
        engine = parts.engine
        assert isinstance(engine, SequentialEngine | NativeEngine)
        if waits:
            engine.plan = replace(engine.plan, loss=waiting(engine.plan.loss))
        numbers = [each.clone() for each in take_steps(parts)]
        assert streams.current is before
        if engine.graphs is not None and not engine.graphs.eager:
            assert engine.graphs.kept_bytes == streams.reserved_bytes > 0
    return Trained(numbers, engine.graphs.record() if engine.graphs is not None else {})


def waiting(loss: Any) -> Any:
    """The loss, after waiting for it."""

    def waited(*arguments: Any) -> Tensor:
        found: Tensor = loss(*arguments)
        found.item()
        return found

    return waited


def take_steps(parts: TrainingParts) -> Iterator[Tensor]:
    yield from train_some(parts, TRAINED[0])
    parts.stage.eval()
    with parts.batches.open("test", 0, TESTED) as batches:
        for batch in batches:
            yield from parts.engine.evaluate(batch)
    yield from train_some(parts, TRAINED[1])
    yield from parts.stage.buffers()


def train_some(parts: TrainingParts, steps: range) -> Iterator[Tensor]:
    engine = parts.engine
    parts.stage.train()
    with parts.batches.open("train", steps.start, steps.stop) as batches:
        for step, batch in zip(steps, batches, strict=True):
            parts.timer.has_spans = step == PROFILED
            output = engine.train_step(batch)
            yield from (*output.losses, *output.outputs, *engine.gradients.flats)
            if parts.optimizer is not None:
                parts.optimizer.step()


def alone(experiment: Experiment, **how: bool) -> Trained:
    return train(experiment, Mesh(experiment.process_layout, 0, CPU), **how)


REPLAYED = {"train": "replayed 4 times", "test": "replayed 1 times"}


@pytest.mark.parametrize("experiment", STEPS.values(), ids=STEPS)
def test_a_replayed_step_has_the_bits_of_a_computed_one(experiment: Experiment) -> None:
    computed = alone(experiment, captured=False)
    replayed = alone(experiment, captured=True)
    assert replayed.record == REPLAYED
    assert all(map(torch.equal, replayed.numbers, computed.numbers))


def test_a_step_that_waits_for_the_device_is_computed() -> None:
    # Its BatchNorm keeps statistics until the end of a mini-batch, which is not captured.
    experiment = vig(batchnorm="deferred")
    computed = alone(experiment, captured=False)
    refused = alone(experiment, captured=True, waits=True)
    assert refused.record == {
        "train": "eager: aten._local_scalar_dense.default waits for the device",
        "test": "replayed 1 times",
    }
    assert all(map(torch.equal, refused.numbers, computed.numbers))


def test_before_a_replay_the_host_calls_no_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    class Called(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            called.append(str(func.overloadpacket))
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(cuda_graph, "why_eager", lambda *_: None)
    with computed_by("torch"), simulated():
        parts = set_up(gat(), Mesh(gat().process_layout, 0, CPU), None)
        parts.timer.has_spans = False
        with parts.batches.open("train", 0, 3) as batches:
            parts.engine.train_step(next(batches))
            monkeypatch.setattr(SimulatedGraph, "replay", lambda _: called.append("replay"))
            for batch in batches:
                with Called():
                    parts.engine.train_step(batch)
    # The keys of the next step's masks are copied while the device replays.
    assert called == ["replay", "aten.copy_"] * 2


class Collects(Listener):
    def __init__(self) -> None:
        self.records: list[StepRecord] = []

    def step_taken(self, taken: StepTaken) -> None:
        self.records.append(taken.record)


@pytest.mark.parametrize(("warmup", "warm"), [(0, [0, 2]), (1, [0, 1]), (3, [0, 1, 2, 3])])
def test_no_step_counts_that_captures_or_is_the_first_computed(
    warmup: int, warm: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = StepTimer.start

    def started(timer: StepTimer, *, profiled: bool = False) -> float:
        # As on a GPU.
        timer.has_spans = profiled
        return start(timer, profiled=profiled)

    monkeypatch.setattr(StepTimer, "start", started)
    monkeypatch.setattr(cuda_graph, "why_eager", lambda *_: None)
    steps = {"train_steps": warmup + 7, "warmup_steps": warmup, "test_every": 6, "test_steps": 1}
    with computed_by("torch"), simulated():
        experiment = gat(**steps)
        parts = set_up(experiment, Mesh(experiment.process_layout, 0, CPU), None)
        collects = Collects()
        TrainingLoop(parts, [collects]).run()
    train = [each for each in collects.records if each.phase == "train"]
    assert [each.step for each in train if each.warmup] == warm
    assert [each.step for each in train if each.profiled] == [warmup, warmup + 1]
    test = [each.warmup for each in collects.records if each.phase == "test"]
    assert test == [n < max(warmup, 1) for n in range(len(test))]


PIPELINES = {
    "vig, 1f1b": vig(layout="pp2", schedule="1f1b"),
    "gat, three stages": gat(layout="pp3", balance=[3, 1, 2], schedule="1f1b", microbatches=5),
    "gat, split backward": gat(layout="pp2", schedule="zero-bubble", microbatches=4),
    "gat, interleaved": gat(layout="pp2", schedule="interleaved", virtual_stages=2, microbatches=4),
    "gcn, replicas": gat(model={"name": "gcn"}, layout="dp2-pp2"),
}


def both(experiment: Experiment) -> tuple[dict[str, str], bool]:
    """What this rank replayed, and whether it has the bits of a rank that computes."""
    torch.set_num_threads(1)
    mesh = join(read_environment(), experiment.layout, CPU, ends_at=experiment.loss_stage)
    computed = train(experiment, mesh, captured=False)
    replayed = train(experiment, mesh, captured=True)
    leave(mesh)
    return replayed.record, all(map(torch.equal, replayed.numbers, computed.numbers))


@pytest.mark.distributed
@pytest.mark.parametrize("experiment", PIPELINES.values(), ids=PIPELINES)
def test_the_replayed_actions_of_a_pipeline_have_the_bits_of_computed_ones(
    experiment: Experiment,
) -> None:
    found = spawn(both, experiment.layout.world_size, experiment)
    assert found == [(REPLAYED, True)] * experiment.layout.world_size


GPU = torch.device("cuda", 0)


REASONS = [
    (gat(), GPU, None),
    (vig(layout="pp2"), GPU, None),
    (gat(cuda_graph="off"), GPU, "cuda_graph is off"),
    (gat(), CPU, "the device is no GPU"),
    (sampled(), GPU, "each mini-batch has other shapes"),
    (vig(layout="pp2", engine="pipelining"), GPU, "the engine is a library's"),
]


def test_why_steps_are_not_captured() -> None:
    for experiment, device, why in REASONS:
        assert why_eager(experiment, device) == why
