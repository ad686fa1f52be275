"""Gradients in flat buffers; in buckets during the backward they are the same to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.distributed.environment import read_environment
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.distributed.rendezvous import join, leave
from gnnhpc.engines.gradient_sync import BucketedGradients, dense_strides, flatten
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.training.setup import set_up
from tests.tools.cells import gat, graphs, sampled, vig
from tests.tools.forked import spawn

STEPS = 2


def train(experiment: Experiment, mesh: Mesh) -> tuple[list[Tensor], int, int]:
    """Gradients and buffers of two steps; how many buckets were reduced while a backward ran, and
    how many there are in both."""
    parts = set_up(experiment, mesh, None)
    parts.stage.train()
    gradients, found = parts.engine.gradients, []
    early = count = 0
    if isinstance(gradients, BucketedGradients):
        count, reduce = STEPS * len(gradients.buckets), gradients._reduce_after

        def counted(place: int, layer: int) -> None:
            nonlocal early
            before = len(gradients._begun)
            reduce(place, layer)
            early += (len(gradients._begun) - before) * (layer >= 0)

        gradients._reduce_after = counted  # type: ignore[method-assign]
    with parts.batches.open("train", 0, STEPS) as batches:
        for batch in batches:
            parts.timer.start()
            parts.engine.train_step(batch)
            assert parts.timer.stop().gradients_ready_s is not None
            found += [p.grad.clone() for p in parts.stage.parameters() if p.grad is not None]
    assert gradients.reductions == (count or STEPS)
    return [*found, *(b.clone() for b in parts.stage.buffers())], early, count


def compare(experiments: list[Experiment]) -> list[tuple[int, int]]:
    first = experiments[0]
    mesh = join(read_environment(), first.layout, torch.device("cpu"), ends_at=first.loss_stage)
    answers = []
    for experiment in experiments:
        at_end, *_ = train(experiment, mesh)
        # A bucket a layer, of the small models here.
        found, early, count = train(experiment.model_copy(update={"bucket_mib": 1e-4}), mesh)
        assert all(map(torch.equal, at_end, found)), experiment.id
        answers.append((early // STEPS, count // STEPS))
    mesh.barrier()
    leave(mesh)
    return answers


DEEP = {"name": "resgcn", "layers": 8, "hidden": 8}
CASES = {
    "replicas": [gat(layout="dp2", activation_checkpointing="always")],
    "replicas of other models": [
        vig(layout="dp2"),
        vig(layout="dp2", model={"name": "vig", "blocks": 2, "implementation": "pyg"}),
        gat(layout="dp2", model={"name": "gcnii", "layers": 4, "hidden": 8}),
        sampled(layout="dp2", batch_size=12),
        graphs(layout="dp2"),
    ],
    "pipelines": [
        vig(layout="dp2-pp2", schedule="1f1b"),
        gat(layout="dp2-pp2", model=DEEP, schedule="interleaved", virtual_stages=2),
        gat(layout="dp2-pp2", model=DEEP, schedule="zero-bubble"),
    ],
    "zbv": [gat(layout="dp2-pp2", model=DEEP, schedule="zbv")],
}


@pytest.mark.quick("replicas")
@pytest.mark.distributed
@pytest.mark.parametrize("experiments", CASES.values(), ids=CASES)
def test_replicas_have_the_same_bits(experiments: list[Experiment]) -> None:
    """And all but the first layers' gradients are on their way while the last backward runs."""
    size = experiments[0].layout.world_size
    for answers in spawn(compare, size, experiments):
        for (early, count), experiment in zip(answers, experiments, strict=True):
            # A split backward computes gradients of weights last, so that none is ready before.
            last = count if experiment.split_backward else experiment.virtual_stages
            assert count >= 2, experiment.id
            assert early == count - last, experiment.id


def test_gradients_lie_in_memory_as_their_parameters_do() -> None:
    tensors = [
        torch.randn(3, 4),
        torch.randn(4, 3).t(),
        torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last),
        torch.randn(3, 8)[:, ::2],
        torch.randn(()),
        torch.randn(0, 3),
    ]
    parameters = [nn.Parameter(each) for each in tensors]
    flat = flatten(parameters)
    for n, p in enumerate(parameters):
        assert p.grad is not None
        assert p.grad.stride() == dense_strides(p)
        assert (dense_strides(p) == p.stride()) == (n != 3)
        p.grad.fill_(n + 1)
    counts = [p.numel() for p in parameters]
    assert flat.tolist() == [n + 1.0 for n, count in enumerate(counts) for _ in range(count)]
