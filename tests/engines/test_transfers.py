"""Other ways for tensors to travel change no number: through shared memory, staged in host memory,
or posted as for NCCL.

The last two run here on gloo and CPUs: which memory is whose, and which event is waited for, a GPU
shows.
"""

from __future__ import annotations

import dataclasses
import os
from typing import Literal

import pytest
import torch

from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.rendezvous import _connect_links, _link_groups, join, leave
from gnnhpc.engines.native import NativeEngine
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.setup import set_up
from tests.tools.cells import gat, vig
from tests.tools.forked import spawn

pytestmark = pytest.mark.distributed
Way = Literal["plain", "shared", "staged", "linked"]
STEPS = 2


def train(experiment: Experiment, way: Way) -> list[float]:
    """What this rank computed in two steps and an evaluation: gradients, then outputs, summed."""
    torch.set_num_threads(1)
    os.environ["GNNHPC_SHARED_MEMORY"] = "0" if way == "plain" else "1"
    cpu = torch.device("cpu")
    mesh = join(read_environment(), experiment.layout, cpu, ends_at=experiment.loss_stage)
    if way == "staged":
        mesh = dataclasses.replace(mesh, staged=True)
    if way == "linked":
        links = _link_groups(mesh.layout, mesh.rank)
        mesh = dataclasses.replace(mesh, links=links)
        _connect_links(mesh)
    parts = set_up(experiment, mesh, None)
    engine = parts.engine
    assert isinstance(engine, NativeEngine)
    names = {"staged": "gloo through host memory", "shared": "shared memory"}
    assert engine.transfers == names.get(way, "gloo")
    found = []
    with parts.batches.open("train", 0, STEPS) as batches:
        for batch in batches:
            if parts.optimizer is not None:
                parts.optimizer.zero_grad(set_to_none=False)
            parts.timer.start()
            engine.train_step(batch)
            found.append(engine.gradients.norm() or 0.0)
            if parts.optimizer is not None:
                parts.optimizer.step()
    parts.stage.eval()
    with parts.batches.open("test", 0, 1) as batches:
        for batch in batches:
            found += [float(out.double().sum()) for out in engine.evaluate(batch)]
    mesh.barrier()
    leave(mesh)
    return found


EXPERIMENTS = {
    "vig dp2-pp2": vig(layout="dp2-pp2", schedule="1f1b"),
    # In evaluation a stage of dropout alone returns the very buffer that it received into.
    "gat pp3": gat(layout="pp3", balance=[3, 1, 2], schedule="1f1b", microbatches=5),
    "vig pp2 zbv": vig(layout="pp2", schedule="zbv"),
}


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_the_same_numbers_by_every_way(experiment: Experiment) -> None:
    size = experiment.layout.world_size
    expected = spawn(train, size, experiment, "plain")
    assert any(each[0] > 0 for each in expected)
    assert spawn(train, size, experiment, "shared") == expected
    if experiment.virtual_stages == 1:
        assert spawn(train, size, experiment, "staged") == expected
        assert spawn(train, size, experiment, "linked") == expected
