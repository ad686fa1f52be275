"""What is sampled in torch and by Triton's programs is bit for bit what the compiled sampler
samples."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.kernels.sample_neighbors import FreshMemory, Layer, Sampler
from gnnhpc.kernels.torch.torch_sampler import TorchSampler, below
from gnnhpc.kernels.triton.launch import signed
from gnnhpc.validation.reference import random_numbers as reference
from tests.kernels.test_sample_neighbors import make_csr
from tests.tools.backends import GPU, needs_triton

needs_sampler = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
WORD = st.integers(0, 2**32 - 1)
SEEDS = st.integers(0, 2**64 - 1) | st.just(2**64 - 1)
# Of ranges near 2^32 up to half of all numbers are drawn again.
BOUNDS = st.integers(1, 100) | st.integers(1, 2**32 - 1) | st.integers(2**31, 2**31 + 5)
Batch = tuple[Tensor, Tensor | None]
"""Seeds, and edges that are left out."""


@settings(max_examples=60)
@given(st.lists(st.lists(BOUNDS, min_size=7, max_size=7), min_size=1, max_size=4), SEEDS)
@example([[2**31 + 1] * 7, [3] * 7], 5)
def test_bounded_numbers_are_drawn_again_where_they_are_refused(
    bounds: list[list[int]], seed: int
) -> None:
    nodes = torch.arange(len(bounds))
    found = below(Layer(7, seed, 3, 1), nodes, torch.tensor(bounds)).tolist()
    for node, (row, mine) in enumerate(zip(bounds, found, strict=True)):
        numbers = reference.node_numbers(seed, node, 3, 1)
        assert mine == [reference.below(numbers, bound) for bound in row]


@pytest.mark.parametrize("bound", [3, 2**31 + 1, 2**32 - 1])
def test_triton_draws_refused_numbers_again(bound: int) -> None:
    """Of ranges near 2^31 half of all numbers are refused, which no node's edges are."""
    needs_triton()
    from tests.kernels.probe_programs import bounded_numbers

    seed, step, layer = 2**63 + 12_345, 2**32 - 1, 1
    found = torch.empty(16, 5, dtype=torch.int32, device=GPU)
    words = (seed & 0xFFFFFFFF, seed >> 32, step, bound)
    bounded_numbers[(1,)](found, *map(signed, words), layer, ROWS=16, DRAWS=5)
    bounds = torch.full((16, 5), bound)
    wanted = below(Layer(5, seed, step, layer), torch.arange(16), bounds)
    assert (found.cpu().long() & 0xFFFFFFFF).equal(wanted)


def assert_same_layers(
    code: str,
    graph: tuple[Tensor, Tensor],
    batches: list[Batch],
    fanouts: list[int],
    seed: int,
    step: int,
) -> None:
    """Each mini-batch has the same layers."""
    memory, ours = FreshMemory("cpu"), TorchSampler(*graph)
    if code == "triton":
        needs_triton()
        from gnnhpc.kernels.triton_sampler import TritonSampler

        memory, ours = FreshMemory(GPU), TritonSampler(*(each.to(GPU) for each in graph))
    compiled = Sampler(*graph)
    for seeds, left_out in batches:
        for each in (compiled, ours):
            each.begin(seeds, left_out)
        for hop, fanout in enumerate(fanouts):
            layer = Layer(fanout, seed, step, hop)
            wanted, found = compiled.draw(layer), ours.draw(layer, memory)
            for name in ("indptr", "source", "target", "edge"):
                mine, other = getattr(found, name).cpu(), getattr(wanted, name)
                assert mine.dtype == other.dtype
                assert mine.equal(other)
            assert found.rows_in == wanted.rows_in
            assert ours.nodes.cpu().equal(compiled.nodes)


def drawn_case(graph: int, nodes: int) -> tuple[tuple[Tensor, Tensor], list[Batch]]:
    """A graph of nodes with no edges and many; of four mini-batches two have edges left out, and
    one has the seeds of the one before."""
    csr = make_csr(nodes, graph % 7, mean=(2.0, 8.0, 40.0)[graph % 3])
    numbers, edges = np.random.default_rng(graph), len(csr[1])
    seeds, others = (
        torch.from_numpy(np.sort(numbers.choice(nodes, numbers.integers(0, 40), replace=False)))
        for _ in range(2)
    )
    share = (0.0, 0.02, 0.3, 0.9, 1.0)[graph % 5]
    some = torch.from_numpy((numbers.random(edges) < share).nonzero()[0])
    return csr, [(seeds, None), (seeds, some), (others, torch.arange(0, edges, 3)), (seeds, None)]


FANOUTS = st.integers(1, 12) | st.integers(30, 90)


@needs_sampler
@settings(max_examples=150)
@given(st.integers(0, 10**6), st.lists(FANOUTS, min_size=1, max_size=3), SEEDS, WORD)
def test_torch_samples_as_the_compiled_sampler(
    graph: int, fanouts: list[int], seed: int, step: int
) -> None:
    assert_same_layers("torch", *drawn_case(graph, 90), fanouts, seed, step)


@needs_sampler
@settings(max_examples=4)
@given(st.integers(0, 10**6), st.sampled_from([[3], [8, 2], [33, 5]]), SEEDS, WORD)
def test_triton_samples_as_the_compiled_sampler(
    graph: int, fanouts: list[int], seed: int, step: int
) -> None:
    assert_same_layers("triton", *drawn_case(graph, 60), fanouts, seed, step)


def star(degree: int) -> tuple[Tensor, Tensor]:
    """Node 0 has so many neighbours, the others have it."""
    ends = torch.cat((torch.tensor([0]), torch.arange(degree, 2 * degree + 1)))
    return ends, torch.cat((torch.arange(1, degree + 1), torch.zeros(degree))).int()


@needs_sampler
@pytest.mark.quick("8-4-torch", "9-4-torch", "2-1-torch", "33-32-torch", "8-4-triton", "9-4-triton")
@pytest.mark.parametrize("code", ["torch", "triton"])
@pytest.mark.parametrize(
    ("degree", "fanout"),
    [(n, 1) for n in (1, 2, 3)]
    + [(n, 4) for n in (3, 4, 5, 7, 8, 9)]
    + [(n, 32) for n in (31, 32, 33, 63, 64, 65, 40_032)],
)
def test_degrees_about_the_fan_out(degree: int, fanout: int, code: str) -> None:
    batches: list[Batch] = [(torch.tensor([0]), None)]
    assert_same_layers(code, star(degree), batches, [fanout] * 2, 2**63 + 5, 9)
