"""The compiled calls of half of ViG alone, in one micro-batch and in several: no Python between.

    python -m benchmarks.bench_vig_calls [--counts 1 5 10 20] [--rounds 9]

A stage of two computes these eight layers with one call a micro-batch and direction. What a step of
a pipeline takes longer than this is Python, torch and checks between the calls, whose code the
kernels have driven out of the caches, and waits. All forwards come before all backwards, as under
GPipe. Each number of micro-batches has a process of its own (`benchmarks.turns`), of one thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.turns import Entry, compete
from gnnhpc.distributed.allocator import map_large_blocks_separately
from gnnhpc.kernels.vig_layers import Gradients, Layer, Layers
from gnnhpc.kernels.vig_torch import Moved, Statistics, Weights

IMAGES, GRID, LAYERS = 100, (32, 32), 8
GRAPHER, FFN = 256, 512


def contestant(microbatches: int) -> Callable[[], float]:
    """Seconds of all forwards and backwards of a mini-batch."""
    map_large_blocks_separately()
    draw = torch.Generator().manual_seed(0)
    made = drawn_layers(LAYERS, draw)
    layers = Layers(made)
    into = Gradients([zeros_like(each.weights) for each in made])
    shape = (IMAGES // microbatches, GRID[0] * GRID[1], 3)
    inputs = [torch.randn(shape, generator=draw) for _ in range(microbatches)]
    gradients = [1e-3 * torch.randn(shape, generator=draw) for _ in range(microbatches)]

    def turn() -> float:
        began = time.perf_counter()
        held = [layers.forward(x, moves=True) for x in inputs]
        for x, g in zip(inputs, gradients, strict=True):
            layers.backward(x, held.pop(0).saved, g, into, wants_x=True)
        return time.perf_counter() - began

    return turn


def drawn_layers(count: int, draw: torch.Generator) -> list[Layer]:
    """Graphers and FFNs in turn."""
    return [_layer(GRAPHER if n % 2 == 0 else FFN, n % 2 == 0, draw) for n in range(count)]


def _layer(hidden: int, is_grapher: bool, draw: torch.Generator) -> Layer:
    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw)

    square = (drawn(hidden, hidden) / 16, drawn(hidden, hidden) / 16, drawn(hidden))
    weights = Weights(
        *(drawn(hidden, 3), drawn(hidden), 1 + drawn(hidden) / 10, drawn(hidden) / 10),
        *(square if is_grapher else (None, None, None)),
        *(drawn(3, hidden) / 16, drawn(3), 1 + drawn(3) / 10, drawn(3) / 10),
    )
    running = Statistics(torch.zeros(hidden), torch.ones(hidden), torch.zeros(3), torch.ones(3))
    counts = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    moved = Moved(running, counts, (0.1, 0.1))
    return Layer(GRID if is_grapher else None, weights, (1e-5, 1e-5), moved)


def zeros_like(weights: Weights) -> Weights:
    return Weights._make(None if w is None else torch.zeros_like(w) for w in weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 5, 10, 20])
    parser.add_argument("--rounds", type=int, default=9, help="mini-batches timed")
    given = parser.parse_args()
    entries = {
        str(count): Entry("benchmarks.bench_vig_calls:contestant", {"microbatches": count})
        for count in given.counts
    }
    seconds = compete(entries, given.rounds, 1, warmup=2)
    base = seconds[str(given.counts[0])]
    for name, values in seconds.items():
        ratios = sorted(v / b for v, b in zip(values, base, strict=True))
        print(
            f"{name:>3} micro-batches: {statistics.median(values):.4f} s, "
            f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}) of "
            f"{given.counts[0]}'s"
        )


if __name__ == "__main__":
    main()
