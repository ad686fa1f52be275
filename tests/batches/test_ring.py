"""Buffers of mini-batches are used again, but never while a part is held or copied."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnhpc.batches.prefetch import Ring, prefetched
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.device_copies import Copying
from gnnhpc.graphs.graph import Graph
from gnnhpc.kernels import sample_neighbors as sample
from gnnhpc.kernels.sample_neighbors import FRESH, Memory
from tests.tools.graphs import block_tensors, make_graph

needs_sampler = pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++")
STEPS = 30


def numbers(first: int, memory: Memory, count: int = 1000) -> Tensor:
    return memory.empty(count, torch.int32).copy_(torch.arange(first, first + count))


def grown() -> Ring:
    """One slot, with room for what `numbers` makes."""
    ring = Ring(1)
    numbers(0, ring.lend())
    return ring


@pytest.mark.parametrize("part_of", [lambda x: x[10:20].numpy(), lambda x: x.view(10, 100).t()])
def test_whatever_shows_a_part_of_it_holds_a_slot(part_of: Callable[[Tensor], Any]) -> None:
    ring = grown()
    part = part_of(numbers(7, ring.lend()))
    gc.collect()
    numbers(100, ring.lend())
    assert (part == part_of(torch.arange(7, 1007, dtype=torch.int32))).all()
    assert ring.lend() is FRESH
    del part
    one, other = (numbers(5, ring.lend()).data_ptr() for _ in range(2))
    assert one == other


def test_a_slot_is_lent_again_only_after_its_copies_have_ended() -> None:
    ring, copying, ended = grown(), Copying(), [False, False]
    lent = ring.lend()
    for number in range(2):
        copying.hold(lent.empty(100, torch.int32), lambda number=number: ended[number])
    del lent
    other = torch.empty(1)
    for copied in ((False, False), (True, False), (True, True)):
        ended[:] = copied
        copying.hold(other, lambda: True)
        assert (ring.lend() is FRESH) == (not all(copied))


def test_tensors_of_a_slot_lie_apart_and_do_not_know_of_each_other() -> None:
    """Autograd counts a tensor's changes with those of all that share its memory."""
    ring = grown()
    memory = ring.lend()
    wanted = [(count, dtype) for count in (3, 0, 17) for dtype in (torch.int32, torch.int64)]
    made = [memory.empty(*each) for each in wanted]
    assert [(len(each), each.dtype) for each in made] == wanted
    for number, each in enumerate(made):
        each.fill_(number)
    assert all(each.eq(number).all() for number, each in enumerate(made))
    assert {each._version for each in made} == {1}
    assert all(each.data_ptr() % 64 == 0 for each in made)


def sampling(graph: Graph, ring: Ring | None) -> Callable[[int], GraphChunk]:
    """Makes the mini-batch of a step, in the ring's memory where there is one."""

    def chunk(step: int) -> GraphChunk:
        sampler = NeighborSampler(graph, (5, 4), 7)
        seeds = torch.randperm(300, generator=torch.Generator().manual_seed(step))[:40]
        return sampler.chunk(seeds.sort().values, step, memory=ring.lend() if ring else FRESH)

    return chunk


def tensors(chunk: GraphChunk) -> list[Tensor]:
    """With the edges by source, which the first backward pass asks for."""
    return [chunk.nodes, chunk.degree, *(x for b in chunk.blocks for x in block_tensors(b))]


@needs_sampler
@pytest.mark.parametrize(("workers", "held"), [(0, 1), (0, 3), (3, 1), (3, STEPS)])
def test_mini_batches_that_are_held_stay_as_they_are(held: int, workers: int) -> None:
    """A consumer that is slow, one that keeps some, one that keeps them all, past the end."""
    graph = make_graph(300, 3000, features=12, classes=5, seed=3)
    wanted = [tensors(sampling(graph, None)(step)) for step in range(STEPS)]
    kept: list[tuple[int, GraphChunk]] = []
    with prefetched(sampling(graph, Ring(workers + 2)), range(STEPS), workers) as drawn:
        for step, chunk in enumerate(drawn):
            kept = [*kept, (step, chunk)][-held:]
            for number, each in kept:
                assert all(map(torch.equal, tensors(each), wanted[number]))
    assert len(kept) == held
    assert all(all(map(torch.equal, tensors(each), wanted[number])) for number, each in kept)
