"""What Triton's programs sample is bit for bit what the compiled sampler samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.kernels.sample_neighbors import FreshMemory, Layer, Sampler
from gnnhpc.kernels.torch.torch_picks import Key, below
from gnnhpc.kernels.triton.launch import signed
from tests.kernels.test_sample_neighbors import make_csr
from tests.kernels.test_torch_sampler import SEEDS, WORD, star

pytestmark = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def assert_same_layers(
    graph: tuple[Tensor, Tensor], batches: list[tuple[Tensor, Tensor | None]], layers: list[Layer]
) -> None:
    """Each mini-batch, of seeds and of edges that are left out, has the same layers."""
    from gnnhpc.kernels.triton_sampler import TritonSampler

    compiled, ours = Sampler(*graph), TritonSampler(*(each.to(DEVICE) for each in graph))
    for seeds, without in batches:
        for each in (compiled, ours):
            each.begin(seeds, without)
        for layer in layers:
            wanted, found = compiled.draw(layer), ours.draw(layer, FreshMemory(DEVICE))
            for name in ("indptr", "source", "edge"):
                mine, other = getattr(found, name).cpu(), getattr(wanted, name)
                assert mine.dtype == other.dtype
                assert mine.equal(other)
            assert found.rows_in == wanted.rows_in
            assert ours.nodes.cpu().equal(compiled.nodes)
            assert ours.targets(found).cpu().equal(compiled.targets(wanted))


@settings(max_examples=6)
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 8) | st.sampled_from([32, 33]), min_size=1, max_size=2),
    SEEDS,
    WORD,
)
def test_layers_are_those_of_the_compiled_sampler(
    graph: int, fanouts: list[int], seed: int, step: int
) -> None:
    """Of nodes with no edges and many, mini-batch after mini-batch, one of them with edges left
    out and one with the seeds of the one before."""
    indptr, columns = make_csr(60, graph % 7, mean=(2.0, 8.0, 40.0)[graph % 3])
    numbers = np.random.default_rng(graph)
    seeds = torch.from_numpy(numbers.choice(60, numbers.integers(0, 33), replace=False))
    layers = [Layer(fanout, seed, step, hop) for hop, fanout in enumerate(fanouts)]
    some = torch.arange(0, len(columns), 3)
    batches = [(seeds, None), (seeds, some), (seeds, None)]
    assert_same_layers((indptr, columns), batches, layers)


@pytest.mark.quick("2k-4", "2k + 1-4", "1-1", "1-32")
@pytest.mark.parametrize("fanout", [1, 4, 32])
@pytest.mark.parametrize("more", [-1, 0, 1, "2k - 1", "2k", "2k + 1", 40_000])
def test_degrees_about_the_fan_out(fanout: int, more: Any) -> None:
    near = {"2k - 1": 2 * fanout - 1, "2k": 2 * fanout, "2k + 1": 2 * fanout + 1}
    graph = star(max(near.get(more, 0) or fanout + more, 1))
    layers = [Layer(fanout, 2**63 + 5, 9, hop) for hop in range(2)]
    assert_same_layers(graph, [(torch.tensor([0]), None)], layers)


@pytest.mark.parametrize("bound", [3, 2**31 + 1, 2**32 - 1])
def test_refused_numbers_are_drawn_again(bound: int) -> None:
    """Of ranges near 2^31 half of all numbers are refused, which no node's edges are."""
    from tests.kernels.triton.probe_programs import bounded_numbers

    seed, step, layer = 2**63 + 12_345, 2**32 - 1, 1
    found = torch.empty(16, 5, dtype=torch.int32, device=DEVICE)
    words = (seed & 0xFFFFFFFF, seed >> 32, step, bound)
    bounded_numbers[(1,)](found, *map(signed, words), layer, ROWS=16, DRAWS=5)
    bounds = torch.full((16, 5), bound)
    wanted = below(Key(seed, step, layer), torch.arange(16), bounds)
    assert (found.cpu().long() & 0xFFFFFFFF).equal(wanted)
