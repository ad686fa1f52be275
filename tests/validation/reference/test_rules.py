"""The reference's numbers, orders and optimizers are those of the suite and of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.batches.image_batches import epoch_indices
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.shuffle import Shares
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.kernels.dropout_mask import layer_mask
from gnnhpc.validation.reference.dropout_rule import MasksByRule
from gnnhpc.validation.reference.optimizer_rule import OptimizerRule, clipped
from gnnhpc.validation.reference.random_numbers import NeighborSampling
from gnnhpc.validation.reference.sample_schedule import SampleSchedule, split_nodes
from gnnhpc.validation.reference.training_step import gradient_rounding
from tests.tools.cells import GAT
from tests.tools.graphs import make_graph

needs_sampler = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")


@given(
    st.integers(0, 2**20),
    st.integers(0, 10**6),
    st.sampled_from(["layer0.dropout", "layer1.attention"]),
    st.floats(0, 0.999),
    st.lists(st.integers(0, 2**34), min_size=1, max_size=50),
)
def test_dropout_masks(seed: int, step: int, layer: str, p: float, numbers: list[int]) -> None:
    entries = torch.tensor(numbers)
    expected = layer_mask(seed, step, layer, p).weights(entries, torch.float64)
    found = MasksByRule(step, training=True).mask(seed, layer, p)
    weights = torch.ones(1) if found is None else found.weights(entries, torch.float64)
    torch.testing.assert_close(weights.expand_as(expected).double(), expected)
    assert MasksByRule(step, training=False).mask(seed, layer, p) is None


@needs_sampler
@pytest.mark.parametrize("step", [0, 7])
def test_sampled_edges(step: int) -> None:
    graph = make_graph(60, 500, seed=1)
    seeds = torch.arange(0, 60, 3)
    chunk = NeighborSampler(graph, (4,), 5).chunk(seeds, step)
    degrees = torch.bincount(graph.edges[1], minlength=60)
    rule = NeighborSampling(4, 5, step, 0)
    places = rule.places(seeds.tolist(), degrees[seeds].tolist())
    first = degrees.cumsum(0) - degrees
    expected = sorted(
        int(first[node]) + place
        for node, each in zip(seeds.tolist(), places, strict=True)
        for place in each
    )
    edges = chunk.blocks[0].edge
    assert sorted(edges[edges < graph.edges.shape[1]].tolist()) == expected


@pytest.mark.parametrize(
    ("name", "kind", "extra"),
    [
        ("adam", torch.optim.Adam, {}),
        ("adamw", torch.optim.AdamW, {}),
        ("sgd", torch.optim.SGD, {}),
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
    ],
)
def test_optimizers(name: str, kind: Any, extra: dict[str, float]) -> None:
    settings = {"lr": 0.01, "weight_decay": 0.1, **extra}
    config = Experiment.model_validate(GAT | {"optimizer": {"name": name, **settings}}).optimizer
    rule, rng = OptimizerRule(config, 4), np.random.default_rng(0)
    value = {"a": rng.normal(size=(3, 4)), "b": rng.normal(size=5)}
    tensors = {n: torch.nn.Parameter(torch.from_numpy(v.copy())) for n, v in value.items()}
    optimizer = kind(tensors.values(), **settings)
    for step in range(4):
        gradients = {n: rng.normal(size=v.shape) for n, v in value.items()}
        for n, tensor in tensors.items():
            tensor.grad = torch.from_numpy(gradients[n].copy())
        optimizer.step()
        moves = rule.step(value, gradients, step)
        value = {n: v + moves[n] for n, v in value.items()}
        for n, tensor in tensors.items():
            np.testing.assert_allclose(value[n], tensor.detach().numpy(), rtol=1e-11)


def test_gradients_are_clipped_by_the_norm_of_all() -> None:
    gradients = {"a": np.array([3.0, 0.0]), "b": np.array([4.0])}
    assert clipped(gradients, 5.0).keys() == gradients.keys()
    half = clipped(gradients, 2.5)
    assert (half["a"].tolist(), half["b"].tolist()) == ([1.5, 0.0], [2.0])
    assert clipped(gradients, None) == gradients


@pytest.mark.parametrize("replica", range(3))
def test_images_come_in_the_loaders_order(replica: int) -> None:
    schedule = SampleSchedule(50, 4, 3, seed=5, drop_last=True)
    for step in range(3 * schedule.steps_per_epoch):
        epoch, expected = epoch_indices(50, 4, 3, replica, 5, step)
        assert schedule.epoch(step) == epoch
        assert np.array_equal(schedule.share(step, replica), expected)


@pytest.mark.parametrize("replica", range(3))
def test_nodes_come_in_the_loaders_shares(replica: int) -> None:
    train = torch.arange(100, 150)
    shares = Shares(train, 4, 3, 3, replica, seed=5)
    schedule = SampleSchedule(50, 4, 3, seed=5, drop_last=False)
    assert schedule.steps_per_epoch == shares.steps_per_epoch
    for step in range(2 * schedule.steps_per_epoch):
        share = shares.of_step(step)
        assert np.array_equal(schedule.global_batch(step), share.whole)
        assert np.array_equal(schedule.share(step, replica), share.places)
        nodes = split_nodes(train.numpy()[share.places], 3)
        for actual, expected in zip(nodes, share.seeds, strict=True):
            assert np.array_equal(actual, expected.numpy())


@given(st.floats(3.0, 22.0), st.floats(-100.0, 100.0))
def test_rounding_of_a_gradient_is_within_its_bound(gap: float, level: float) -> None:
    """Of a row whose label leads by `gap`; both forms of the loss, as models and engines have."""
    scores = torch.tensor([[level + gap, level, level - 1.0]], dtype=torch.float64)
    lead = scores[0, 0] - scores[0, 1:]
    others = float((-lead).exp().sum())
    exact = others / (1.0 + others)
    bound = gradient_rounding(exact**2, 1, float(scores.abs().max()))
    for logarithms in (scores.log_softmax(1), scores - scores.logsumexp(1, keepdim=True)):
        found = 1.0 - float(logarithms[0, 0].exp())
        assert abs(found - exact) <= bound * exact
