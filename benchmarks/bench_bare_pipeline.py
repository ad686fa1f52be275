"""Two stages of ViG that do nothing but their compiled calls and transfers: what pp2 could reach.

    python -m benchmarks.bench_bare_pipeline [--counts 5 10 20] [--rounds 9]

A process a stage, of one thread, under GPipe: eight layers in a call a micro-batch and direction,
as a run's; the last has the readout, and the loss in three operations of torch. There is no
autograd, and neither times nor checks nor an optimizer. Beside it is a sequential step of a run's
own engine in one micro-batch (`benchmarks.bench_microbatches`), in turn with each.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import torch
from torch import Tensor

from benchmarks.bench_vig_calls import GRID, IMAGES, LAYERS, drawn_layers, zeros_like
from benchmarks.ratios import paired
from benchmarks.turns import Entry, compete
from gnnhpc.core.bounds import bound
from gnnhpc.distributed.allocator import map_large_blocks_separately
from gnnhpc.kernels import vig_readout
from gnnhpc.kernels.channel import Slots, bytes_needed
from gnnhpc.kernels.vig_layers import Gradients, Layers

READOUT, CLASSES = 1024, 10
TIMEOUT_MS = 60_000
ALONE = "sequential"


@dataclass
class _Stage:
    """One end of the pipeline."""

    microbatches: int
    is_last: bool
    activations: Slots
    gradients: Slots
    layers: Layers = field(init=False)
    into: Gradients = field(init=False)
    inputs: list[Tensor] = field(init=False)
    targets: Tensor = field(init=False)

    def __post_init__(self) -> None:
        draw = torch.Generator().manual_seed(int(self.is_last))
        made, readout = drawn_layers(LAYERS, draw), None
        if self.is_last:
            sizes = (READOUT, 3), (READOUT,), (CLASSES, READOUT), (CLASSES,)
            readout = vig_readout.Weights(*(torch.randn(n, generator=draw) / 16 for n in sizes))
        self.layers = Layers(made, readout)
        self.into = Gradients(
            [zeros_like(each.weights) for each in made],
            None if readout is None else vig_readout.Weights(*map(torch.zeros_like, readout)),
        )
        images = IMAGES // self.microbatches
        shape = images, GRID[0] * GRID[1], 3
        self.inputs = [torch.randn(shape, generator=draw) for _ in range(self.microbatches)]
        self.targets = torch.eye(CLASSES)[torch.arange(images) % CLASSES]

    def step(self) -> None:
        if self.is_last:
            self._last()
        else:
            self._first()

    def _first(self) -> None:
        held = []
        for x in self.inputs:
            done = self.layers.forward(x, moves=True)
            assert self.activations.send(done.out, TIMEOUT_MS)
            held.append(done.saved)
        gradient = torch.empty_like(self.inputs[0])
        for x in self.inputs:
            assert self.gradients.take(gradient, TIMEOUT_MS)
            self.layers.backward(x, held.pop(0), gradient, self.into, wants_x=False)

    def _last(self) -> None:
        held = []
        for x in self.inputs:
            assert self.activations.take(x, TIMEOUT_MS)
            held.append(self.layers.forward(x, moves=True))
        for x in self.inputs:
            done = held.pop(0)
            gradient = (done.out.softmax(1) - self.targets) / IMAGES
            d_x, _ = self.layers.backward(x, done.saved, gradient, self.into, wants_x=True)
            assert d_x is not None
            assert self.gradients.send(d_x, TIMEOUT_MS)


def contestant(microbatches: int) -> Callable[[], float]:
    """Seconds until both stages have done a step."""
    map_large_blocks_separately()
    slot = 4 * 3 * GRID[0] * GRID[1] * (IMAGES // microbatches)
    channels = [
        Slots(
            torch.zeros(bytes_needed(microbatches, slot), dtype=torch.uint8).share_memory_(),
            *(microbatches, slot),
        )
        for _ in range(2)
    ]
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    last = fork.Process(target=_be_last, args=(microbatches, channels, there, here), daemon=True)
    last.start()
    there.close()
    stage = _Stage(microbatches, False, *channels)
    _pin(0)

    def turn() -> float:
        here.send("a step")
        here.recv()
        began = time.perf_counter()
        stage.step()
        ended: float = here.recv()
        return max(time.perf_counter(), ended) - began

    return turn


def _be_last(
    microbatches: int, channels: Sequence[Slots], pipe: Connection, first: Connection
) -> None:
    """Until the first stage, whose end of the pipe `first` is, has ended."""
    first.close()
    stage = _Stage(microbatches, True, *channels)
    _pin(1)
    with contextlib.suppress(EOFError):
        while pipe.recv():
            pipe.send("ready")
            stage.step()
            pipe.send(time.perf_counter())


def _pin(number: int) -> None:
    """To a core of its own, where there are so many."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--counts", type=int, nargs="+", default=[5, 10, 20])
    parser.add_argument("--rounds", type=int, default=9, help="steps timed")
    given = parser.parse_args()
    alone = {"model": "vig", "microbatches": 1}
    entries = {ALONE: Entry("benchmarks.bench_microbatches:contestant", alone)} | {
        str(count): Entry("benchmarks.bench_bare_pipeline:contestant", {"microbatches": count})
        for count in given.counts
    }
    seconds = compete(entries, given.rounds, 1, warmup=2)
    for count in given.counts:
        most = bound(1, 2, count, 1)
        found = paired(seconds[str(count)], [each / most for each in seconds[ALONE]])
        ratio = found.ratio
        print(
            f"{count:>3} micro-batches: {found.ours:.4f} s, bound {found.reference:.4f} s, "
            f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f}) of it"
        )


if __name__ == "__main__":
    main()
