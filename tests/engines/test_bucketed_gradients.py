"""Gradients reduced in buckets during the backward: the same to the bit as all at the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from gnnhpc.core.layout import Layout
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.engines.gradient_sync import BucketedGradients, FlatGradients
from gnnhpc.engines.native import NativeEngine
from gnnhpc.engines.sequential import SequentialEngine
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.setup import TrainingParts, set_up
from tests.tools.cells import gat, graphs, sampled, vig
from tests.tools.forked import spawn

MIB = 1e-4
"""A bucket a layer, of the small models here."""
STEPS = 2


def in_buckets(experiment: Experiment, mib: float | None = MIB) -> Experiment:
    return experiment.model_copy(update={"bucket_mib": mib})


AFTER = "in a step"
"""What a rank does where the backward of its last micro-batch has ended."""


def train(experiment: Experiment, mesh: Mesh) -> tuple[list[Tensor], list[list[str]], int]:
    """Gradients and buffers of two steps; the work during which each all-reduce of a step began,
    and how many buckets there are.
    """
    parts = set_up(experiment, mesh, None)
    parts.stage.train()
    timer, found = parts.timer, []
    begun: list[list[str]] = []
    true = Mesh.begin_sum_over_replicas

    def begin(mesh: Mesh, tensor: Tensor) -> Any:
        begun[-1].append(timer.doing.partition(" of ")[0])
        return true(mesh, tensor)

    Mesh.begin_sum_over_replicas = begin  # type: ignore[method-assign]
    engine = parts.engine
    assert isinstance(engine, NativeEngine | SequentialEngine)
    with parts.batches.open("train", 0, STEPS) as batches:
        for batch in batches:
            begun.append([])
            for parameter in parts.stage.parameters():
                assert parameter.grad is not None
                parameter.grad.zero_()
            timer.start()
            engine.train_step(batch)
            assert timer.stop().gradients_ready_s is not None
            parts.stage.end_minibatch()
            found += [p.grad.clone() for p in parts.stage.parameters() if p.grad is not None]
    Mesh.begin_sum_over_replicas = true  # type: ignore[method-assign]
    gradients = engine.gradients
    count = len(gradients.buckets) if isinstance(gradients, BucketedGradients) else 1
    assert gradients.reductions == STEPS * count
    return [*found, *(b.clone() for b in parts.stage.buffers())], begun, count


def compare(experiments: list[Experiment]) -> list[tuple[list[str], int]]:
    """Of each experiment, what a step's all-reduces began in, and how many there are."""
    torch.set_num_threads(1)
    first = experiments[0]
    ends_at = first.loss_stage
    mesh = join(read_environment(), first.layout, torch.device("cpu"), ends_at=ends_at)
    answers = []
    for experiment in experiments:
        at_end, none, _ = train(experiment, mesh)
        found, begun, count = train(in_buckets(experiment), mesh)
        assert none == [[]] * STEPS
        assert begun[0] == begun[1]
        assert len(at_end) == len(found)
        assert all(map(torch.equal, at_end, found)), experiment.id
        answers.append((begun[0], count))
    mesh.barrier()
    leave()
    return answers


@pytest.mark.slow
@pytest.mark.distributed
def test_two_replicas_of_one_stage() -> None:
    """All but the first layers' gradients are on their way before the backward has ended."""
    experiments = [
        vig(layout="dp2", activation_checkpointing="always"),
        vig(layout="dp2", model={"name": "vig", "blocks": 2, "implementation": "pyg"}),
        gat(layout="dp2"),
        gat(layout="dp2", model={"name": "gcnii", "layers": 4, "hidden": 8}),
        sampled(layout="dp2", batch_size=12),
        graphs(layout="dp2"),
    ]
    for answers in spawn(compare, 2, experiments):
        for (begun, count), experiment in zip(answers, experiments, strict=True):
            assert count >= 2, experiment.id
            assert begun == [*["backward"] * (count - 1), AFTER], experiment.id


DEEP = {"name": "resgcn", "layers": 8, "hidden": 8}
PIPELINES = [
    vig(layout="dp2-pp2", schedule="1f1b"),
    gat(layout="dp2-pp2", model=DEEP, schedule="interleaved", virtual_stages=2),
    gat(layout="dp2-pp2", model=DEEP, schedule="zero-bubble"),
]
THERE_AND_BACK = [gat(layout="dp2-pp2", model=DEEP, schedule="zbv")]


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("experiments", [PIPELINES, THERE_AND_BACK], ids=["there", "and back"])
def test_two_replicas_of_pipelines_under_every_schedule(experiments: list[Experiment]) -> None:
    for answers in spawn(compare, 4, experiments):
        for (begun, count), experiment in zip(answers, experiments, strict=True):
            # Split backward computes gradients of weights last, so that none is ready before.
            after = count if experiment.split_backward else experiment.virtual_stages
            assert begun.count(AFTER) == after, experiment.id
            assert begun.count("backward") == count - after, experiment.id
            assert begun[-1] == AFTER


def alone(experiment: Experiment) -> TrainingParts:
    return set_up(experiment, Mesh(Layout(), 0, torch.device("cpu")), None)


def test_one_replica_reduces_nothing() -> None:
    assert isinstance(alone(in_buckets(vig())).engine.gradients, FlatGradients)
