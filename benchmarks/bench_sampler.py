"""Sampled edges a second of neighbour samplers alone: ours, DGL's, PyG's by torch-sparse.

    python -m benchmarks.bench_sampler [--rounds 20] [--threads 2] [--batch 1024]

A graph of Reddit's nodes and edges with skewed degrees, three layers of ten neighbours. Each
contestant has a process of its own (`benchmarks.turns`), and draws one mini-batch in its turn: the
edges of each layer, with local numbers for its nodes, which no one of them knows beforehand. DGL's
sampler is asked with `fused=True`, its default, and without. PyG's expands a node once.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.turns import Entry, compete, those_that_run
from gnnhpc.kernels.sample import Layer, Sampler
from gnnhpc.models.libraries import import_dgl

NODES, EDGES = 232_965, 114_600_000
SKEW = 1.2
"""Of the logarithms of degrees, the standard deviation."""
FANOUTS = (10, 10, 10)
Form = Literal["ours", "dgl", "dgl, not fused", "pyg"]
FORMS: tuple[Form, ...] = ("ours", "dgl", "dgl, not fused", "pyg")
Draw = Callable[[Tensor, int], int]
"""Of seeds and a step's number, how many edges were drawn."""


def skewed_graph(edges: int) -> tuple[Tensor, Tensor]:
    """`indptr` int64 [NODES + 1] and `columns` int32, as many as asked for but for rounding."""
    draw = np.random.default_rng(0)
    wanted = draw.lognormal(0.0, SKEW, NODES)
    degrees = np.minimum(wanted / wanted.sum() * edges, NODES // 2).astype(np.int64)
    indptr = torch.zeros(NODES + 1, dtype=torch.int64)
    indptr[1:] = torch.from_numpy(np.cumsum(degrees))
    return indptr, torch.from_numpy(draw.integers(NODES, size=int(indptr[-1]), dtype=np.int32))


def ours(indptr: Tensor, columns: Tensor) -> Draw:
    sampler = Sampler(indptr, columns)

    def draw(seeds: Tensor, step: int) -> int:
        sampler.begin(seeds)
        layers = (Layer(fanout, 0, step, hop) for hop, fanout in enumerate(FANOUTS))
        # The edge of each row to itself is not drawn.
        return sum(len(drawn.source) - len(drawn.indptr) + 1 for drawn in map(sampler.draw, layers))

    return draw


def dgl(indptr: Tensor, columns: Tensor, *, fused: bool) -> Draw:
    library = import_dgl()
    none = torch.empty(0, dtype=torch.int64)
    graph = library.graph(("csc", (indptr, columns.long(), none)))
    sampler: Any = library.dataloading.NeighborSampler(list(FANOUTS), fused=fused)

    def draw(seeds: Tensor, _step: int) -> int:
        return sum(block.num_edges() for block in sampler.sample(graph, seeds)[2])

    return draw


def pyg(indptr: Tensor, columns: Tensor) -> Draw:
    import torch_sparse

    wide = columns.long()

    def draw(seeds: Tensor, _step: int) -> int:
        sample = torch.ops.torch_sparse.neighbor_sample
        return len(sample(indptr, wide, seeds, list(FANOUTS), False, True)[1])

    assert torch_sparse is not None
    return draw


def contestant(form: Form, batch: int, edges: int) -> Callable[[], float]:
    """Seconds an edge of one mini-batch after the other."""
    graph = skewed_graph(edges)
    draw = pyg(*graph) if form == "pyg" else ours(*graph)
    if form.startswith("dgl"):
        draw = dgl(*graph, fused=form == "dgl")
    random = torch.Generator().manual_seed(0)
    steps = itertools.count()

    def turn() -> float:
        seeds = torch.randperm(NODES, generator=random)[:batch]
        began = time.perf_counter()
        found = draw(seeds, next(steps))
        return (time.perf_counter() - began) / found

    return turn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20, help="mini-batches timed")
    parser.add_argument("--threads", type=int, default=2, help="threads of every contestant")
    parser.add_argument("--batch", type=int, default=1024, help="seeds of a mini-batch")
    parser.add_argument("--edges", type=int, default=EDGES, help="edges of the graph")
    given = parser.parse_args()
    settings = {"batch": given.batch, "edges": given.edges}
    entries = {
        str(form): Entry("benchmarks.bench_sampler:contestant", {"form": form} | settings)
        for form in FORMS
    }
    entries = those_that_run(entries, given.threads)
    seconds = compete(entries, given.rounds, given.threads, warmup=3)
    for form, values in seconds.items():
        ratio = statistics.median(v / o for v, o in zip(values, seconds["ours"], strict=True))
        rates = sorted(1e-6 / value for value in values)
        print(
            f"{form:15} median {statistics.median(rates):6.1f} M edges/s"
            f"  ({rates[0]:.1f} to {rates[-1]:.1f}), ours {ratio:5.2f} times as fast"
        )


if __name__ == "__main__":
    main()
