"""Two stages of ViG that only call their kernels and send: the fastest that pp2 could be.

A process a stage, of one thread, under GPipe: eight layers in a call a micro-batch and direction,
as in a run; the last stage has the readout, and the loss in three operations of torch. There is no
autograd, no clock, no record, no validation and no optimizer.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from gnnhpc.distributed.allocator import map_large_blocks_separately
from gnnhpc.kernels import vig_mlp
from gnnhpc.kernels.shared_memory_channel import Slots, bytes_needed
from gnnhpc.kernels.torch.torch_vig import Moved, Statistics, Weights
from gnnhpc.kernels.vig_mlp import ReadoutWeights, Stack, StackLayer

IMAGES, GRID, LAYERS = 100, (32, 32), 8
GRAPHER, FFN, READOUT, CLASSES = 256, 512, 1024, 10
TIMEOUT_MS = 60_000


@dataclass
class _Stage:
    """One end of the pipeline."""

    microbatches: int
    is_last: bool
    activations: Slots
    gradients: Slots
    layers: Stack = field(init=False)
    gradient_tensors: list[Weights] = field(init=False)
    into: Any = field(init=False)
    readout: ReadoutWeights = field(init=False)
    readout_gradients: ReadoutWeights = field(init=False)
    inputs: list[Tensor] = field(init=False)
    targets: Tensor = field(init=False)

    def __post_init__(self) -> None:
        random = torch.Generator().manual_seed(int(self.is_last))
        made = [_layer(number, random) for number in range(LAYERS)]
        sizes = (READOUT, 3), (READOUT,), (CLASSES, READOUT), (CLASSES,)
        self.readout = ReadoutWeights(*(torch.randn(n, generator=random) / 16 for n in sizes))
        self.readout_gradients = ReadoutWeights(*map(torch.zeros_like, self.readout))
        self.layers = Stack(made)
        self.gradient_tensors = [_zeros_like(each.weights) for each in made]
        self.into = vig_mlp.addresses(self.gradient_tensors)
        images = IMAGES // self.microbatches
        shape = images, GRID[0] * GRID[1], 3
        self.inputs = [torch.randn(shape, generator=random) for _ in range(self.microbatches)]
        self.targets = torch.eye(CLASSES)[torch.arange(images) % CLASSES]

    def step(self) -> None:
        if self.is_last:
            self._last()
        else:
            self._first()

    def _first(self) -> None:
        held = []
        for x in self.inputs:
            out, saved = self.layers.forward(x, moves=True)
            assert self.activations.send(out, TIMEOUT_MS)
            held.append(saved)
        gradient = torch.empty_like(self.inputs[0])
        for x in self.inputs:
            assert self.gradients.take(gradient, TIMEOUT_MS)
            self.layers.backward(x, held.pop(0), gradient, self.into, wants_x=False)

    def _last(self) -> None:
        held = []
        for x in self.inputs:
            assert self.activations.take(x, TIMEOUT_MS)
            out, saved = self.layers.forward(x, moves=True)
            held.append((saved, *vig_mlp.readout_forward(out, self.readout)))
        for x in self.inputs:
            saved, logits, pooled = held.pop(0)
            gradient = (logits.softmax(1) - self.targets) / IMAGES
            d_out, of_readout = vig_mlp.readout_backward(
                pooled, x.shape[1], self.readout, gradient, wants_x=True
            )
            for total, each in zip(self.readout_gradients, of_readout, strict=True):
                total.add_(each)
            assert d_out is not None
            d_x = self.layers.backward(x, saved, d_out, self.into, wants_x=True)
            assert d_x is not None
            assert self.gradients.send(d_x, TIMEOUT_MS)


def contestant(microbatches: int) -> Callable[[], float]:
    """Seconds until both stages have finished a step."""
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
    """Take steps until the first stage ends; `first` is its end of the pipe."""
    first.close()
    stage = _Stage(microbatches, True, *channels)
    _pin(1)
    with contextlib.suppress(EOFError):
        while pipe.recv():
            pipe.send("ready")
            stage.step()
            pipe.send(time.perf_counter())


def _pin(number: int) -> None:
    """Give this process a core of its own, if there are so many."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[number % len(cores)]})


def _layer(number: int, random: torch.Generator) -> StackLayer:
    """A Grapher for an even number, an FFN for an odd one."""
    is_grapher = number % 2 == 0
    hidden = GRAPHER if is_grapher else FFN

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=random)

    weights = Weights(
        w1=normal(hidden, 3),
        b1=normal(hidden),
        gamma1=1 + normal(hidden) / 10,
        beta1=normal(hidden) / 10,
        root=normal(hidden, hidden) / 16 if is_grapher else None,
        relative=normal(hidden, hidden) / 16 if is_grapher else None,
        conv_bias=normal(hidden) if is_grapher else None,
        w2=normal(3, hidden) / 16,
        b2=normal(3),
        gamma2=1 + normal(3) / 10,
        beta2=normal(3) / 10,
    )
    running = Statistics(torch.zeros(hidden), torch.ones(hidden), torch.zeros(3), torch.ones(3))
    counts = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    return StackLayer(
        GRID if is_grapher else None, weights, (1e-5, 1e-5), Moved(running, counts, (0.1, 0.1))
    )


def _zeros_like(weights: Weights) -> Weights:
    return Weights._make(None if w is None else torch.zeros_like(w) for w in weights)
