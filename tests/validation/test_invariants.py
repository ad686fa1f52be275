"""Invariants of training hold for real steps, alone and on two replicas, and find what breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnnhpc.batches.batch import Batch
from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.engines.engine import StepOutput
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels import sample_neighbors
from gnnhpc.models.seeding import seed_generators
from gnnhpc.records.schema import Check
from gnnhpc.training.listeners import Listener
from gnnhpc.training.loop import TrainingLoop
from gnnhpc.training.setup import TrainingParts, set_up
from gnnhpc.validation.invariants import Invariants
from gnnhpc.validation.trained_samples import SampleOrder
from tests.tools.cells import gat, graphs, linked, sampled, vig
from tests.tools.forked import spawn

Break = Callable[[TrainingLoop], None]


def train(experiment: Experiment, damage: Break | None = None) -> list[Check]:
    """The checks of a run on this rank, which `damage` has changed before it begins."""
    environment = read_environment()
    mesh = join(environment, experiment.process_layout, torch.device("cpu"))
    seed_generators(experiment.seed, mesh.rank)
    parts = set_up(experiment, mesh, None)
    observers: list[Any] = [
        Invariants(experiment, mesh, parts),
        SampleOrder(experiment, mesh, parts.batches),
    ]
    loop = TrainingLoop(experiment, mesh, parts, listeners=observers)
    if damage is not None:
        damage(loop)
    loop.run()
    checks = [check for each in observers for check in each.checks()]
    leave(mesh)
    return checks


def faults(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.detail for check in checks if check.verdict != "ok"}


HEALTHY = {
    "images": vig(batchnorm="micro"),
    "deferred BatchNorm": vig(batchnorm="deferred", activation_checkpointing="always"),
    "chunks of a graph": gat(optimizer={"name": "sgd", "lr": 0.01}),
    "sampled nodes": sampled(),
    "sampled links": linked(),
    "small graphs": graphs(batchnorm="deferred"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_keeps_all_invariants(name: str) -> None:
    if name.startswith("sampled") and not sample_neighbors.is_here():
        pytest.skip("no C++ compiler")
    checks = train(HEALTHY[name])
    assert len(checks) == 9
    assert faults(checks) == {}


@torch.no_grad()
def shift(parts: TrainingParts) -> None:
    next(parts.stage.parameters()).add_(1e-3)


def other_seed(loop: TrainingLoop) -> None:
    torch.manual_seed(7)


class AfterEvaluation(Listener):
    def __init__(self, parts: TrainingParts) -> None:
        self.parts = parts

    def evaluation_ended(self) -> None:
        shift(self.parts)


def changed_after_evaluation(loop: TrainingLoop) -> None:
    loop.listeners = [*loop.listeners, AfterEvaluation(loop.parts)]


def batches_counted_twice(loop: TrainingLoop) -> None:
    norms = [m for m in loop.parts.stage.modules() if isinstance(m, torch.nn.BatchNorm1d)]
    step: Any = loop.parts.engine.train_step

    def counted(batch: Batch) -> StepOutput:
        norms[0].num_batches_tracked.add_(1)  # type: ignore[union-attr, operator]
        taken: StepOutput = step(batch)
        return taken

    loop.parts.engine.train_step = counted  # type: ignore[method-assign]


DAMAGES: dict[str, tuple[str, Break]] = {
    "generators of another seed": ("generators", other_seed),
    "parameters changed after an evaluation": ("continuity", changed_after_evaluation),
    "statistics of a batch counted twice": ("running statistics", batches_counted_twice),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found(name: str) -> None:
    check, damage = DAMAGES[name]
    found = faults(train(vig(), damage))
    assert check in found


@pytest.mark.distributed
@pytest.mark.parametrize(
    "changes",
    [{"layout": "dp2"}, {"layout": "pp2"}, {"layout": "pp2", "engine": "pipelining"}],
    ids=str,
)
def test_two_ranks_keep_all_invariants(changes: dict[str, Any]) -> None:
    for checks in spawn(train, 2, vig(**changes), None):
        assert faults(checks) == {}
