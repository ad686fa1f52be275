"""Neighbours are drawn without bias, by numbers that depend on seed, step, layer and node alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.kernels.sample_neighbors import Layer, Sampler
from gnnhpc.validation.reference.random_numbers import node_numbers, philox, pick
from tests.tools.backends import threads

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")

ALPHA = 1e-6
"""Of a chi-square test: all seeds are fixed, so that a test that passes once always does."""


def test_philox_gives_the_answer_that_random123_has() -> None:
    """The reference does; the kernel's numbers are compared with the reference's below."""
    counter = 0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344
    found = philox(0xA4093822 | 0x299F31D0 << 32, counter)
    assert found == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def picked(n: int, k: int, seeds: int) -> NDArray[np.int64]:
    """[seeds, k] positions of the n neighbours of node 0, drawn under as many seeds."""
    indptr = torch.full((n + 2,), n)
    indptr[0] = 0
    sampler, found = Sampler(indptr, torch.arange(1, n + 1, dtype=torch.int32)), []
    for seed in range(seeds):
        sampler.begin(torch.tensor([0]))
        found.append(sampler.draw(Layer(k, seed, 0, 0)).edge[:-1].clone())
    return torch.stack(found).long().numpy()


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("degree", ["k + 1", "2 k", "492"])
def test_every_neighbour_is_as_likely(degree: str, k: int) -> None:
    n = {"k + 1": k + 1, "2 k": 2 * k}.get(degree) or int(degree)
    found = picked(n, k, 12_000)
    bins = min(n, 500)
    # Neighbours side by side share a bin where there are many: expected counts must not be small.
    edges = np.linspace(0, n, bins + 1).astype(int)
    counts = np.histogram(found, edges)[0]
    expected = np.diff(edges) / n * found.size
    # Of one row picks exclude one another, so the statistic is smaller by (n - k) / (n - 1).
    statistic = ((counts - expected) ** 2 / expected).sum() * (n - 1) / (n - k)
    assert stats.chi2.sf(statistic, bins - 1) > ALPHA


def make_csr(nodes: int, seed: int, mean: float = 8.0) -> tuple[Tensor, Tensor]:
    """Degrees from 0 to many, sources ascending and none a row's own."""
    draw = np.random.default_rng(seed)
    degrees = np.minimum(draw.geometric(1 / mean, nodes) - 1, nodes - 1)
    degrees[draw.integers(nodes, size=2)] = nodes - 1
    rows = [
        np.sort(draw.choice(np.delete(np.arange(nodes), row), degree, replace=False))
        for row, degree in enumerate(degrees)
    ]
    indptr = torch.zeros(nodes + 1, dtype=torch.int64)
    indptr[1:] = torch.from_numpy(np.cumsum(degrees))
    return indptr, torch.from_numpy(np.concatenate(rows).astype(np.int32))


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_layers_hold_what_numpy_draws_for_each_of_their_rows(seed: int, count: int) -> None:
    graph = make_csr(90, seed % 7, mean=(8.0, 40.0)[seed % 2])
    indptr, columns = graph
    draw = np.random.default_rng(seed)
    seeds = draw.choice(90, draw.integers(1, 20), replace=False).tolist()
    fanouts = draw.integers(1, (12, 89)[seed % 3 == 0], size=3).tolist()
    sampler = Sampler(*graph)
    with threads(count):
        sampler.begin(torch.tensor(seeds))
        layers = [sampler.draw(Layer(each, 11, 5, hop)) for hop, each in enumerate(fanouts)]
    rows, nodes = len(seeds), sampler.nodes
    assert nodes[:rows].tolist() == sorted(seeds)
    assert len(set(nodes.tolist())) == len(nodes)
    for number, (layer, fanout) in enumerate(zip(layers, fanouts, strict=True)):
        assert len(layer.indptr) == rows + 1
        for row in range(rows):
            node, mine = int(nodes[row]), slice(int(layer.indptr[row]), int(layer.indptr[row + 1]))
            first, degree = int(indptr[node]), int(indptr[node + 1] - indptr[node])
            numbers = node_numbers(11, node, 5, number)
            few = degree <= fanout
            places = list(range(degree)) if few else pick(numbers, degree, fanout)
            *others, own = layer.source[mine].tolist()
            assert own == row
            assert layer.edge[mine].tolist() == [*(first + p for p in places), len(columns) + node]
            assert nodes[others].tolist() == columns[[first + p for p in places]].tolist()
        reached = nodes[rows : layer.rows_in].tolist()
        assert reached == sorted(reached)
        assert set(layer.source.tolist()) == set(range(layer.rows_in))
        rows = layer.rows_in
    assert rows == len(nodes)


def test_one_sampler_draws_the_same_in_any_thread_with_any_number_of_them() -> None:
    """As a thread that draws ahead: made here, called there; threads that come and go in number.

    Of less than this graph one thread does the work of all.
    """
    draw = np.random.default_rng(5)
    indptr = torch.zeros(200_001, dtype=torch.int64)
    indptr[1:] = torch.from_numpy(np.cumsum(draw.geometric(1 / 8, 200_000)))
    columns = torch.from_numpy(draw.integers(200_000, size=int(indptr[-1]), dtype=np.int32))
    sampler = Sampler(indptr, columns)

    def mini_batch(count: int) -> list[Tensor]:
        with threads(count):
            sampler.begin(torch.arange(0, 200_000, 5))
            layers = [sampler.draw(Layer(5, 11, 5, hop)) for hop in range(2)]
            found = [part for each in layers for part in (each.indptr, each.source, each.edge)]
            found += [*sample.by_source(layers[1]), layers[1].target]
            return [*found, sampler.nodes.clone()]

    alone = mini_batch(1)
    with ThreadPoolExecutor(1) as pool:
        for count in (8, 2, 3, 1):
            for one, other in zip(pool.submit(mini_batch, count).result(), alone, strict=True):
                assert one.equal(other)
    assert alone[6].diff().equal(torch.bincount(alone[4]))
    assert alone[7].equal(torch.argsort(alone[4], stable=True))
