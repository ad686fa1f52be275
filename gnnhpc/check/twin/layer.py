"""The protocol of the twin's layers, and what several of them share."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from gnnhpc.check.twin.scene import RunningStatistics, Scene, SparseInput

EPS = 1e-5
"""In BatchNorm's square root, torch's default."""
MOMENTUM = 0.1
"""Of BatchNorm's running statistics, torch's default."""

Parameters = Mapping[str, Tensor]


def seed_of(seed: int, layer: str) -> int:
    """A layer's own seed: the first seven bytes, highest first, of SHA-256 of "seed/layer"."""
    return int(hashlib.sha256(f"{seed}/{layer}".encode()).hexdigest()[:14], 16)


class TwinLayer(Protocol):
    """One layer: its parameters' initial values, and its output from them."""

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Initial values by name, drawn from torch's generator as the model is documented to."""
        ...

    def norms(self) -> dict[str, int]:
        """BatchNorms by name, and their channels."""
        ...

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor | SparseInput:
        """The output from an input and parameters in float64."""
        ...


class WithoutParameters:
    """Mixed into a layer that learns nothing."""

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return {}

    def norms(self) -> dict[str, int]:
        return {}


def linear_values(
    prefix: str, inputs: int, outputs: int, dtype: torch.dtype, *, bias: bool = True
) -> dict[str, Tensor]:
    """A linear layer's values as torch draws them: uniform within 1 / sqrt(inputs)."""
    bound = 1.0 / math.sqrt(inputs)
    drawn = {f"{prefix}.weight": torch.empty(outputs, inputs, dtype=dtype).uniform_(-bound, bound)}
    if bias:
        drawn[f"{prefix}.bias"] = torch.empty(outputs, dtype=dtype).uniform_(-bound, bound)
    return drawn


def norm_values(prefix: str, channels: int, dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        f"{prefix}.weight": torch.ones(channels, dtype=dtype),
        f"{prefix}.bias": torch.zeros(channels, dtype=dtype),
    }


def linear(x: Tensor, p: Parameters, prefix: str) -> Tensor:
    product = x @ p[f"{prefix}.weight"].T
    return product + p[f"{prefix}.bias"] if f"{prefix}.bias" in p else product


def batch_norm(x: Tensor, p: Parameters, prefix: str, name: str, scene: Scene) -> Tensor:
    """Ioffe & Szegedy 2015 over the rows of [rows, channels]; moves `name`'s running statistics."""
    statistics = scene.statistics[name]
    mean, variance = statistics.mean, statistics.variance
    if scene.training:
        mean = x.mean(0)
        variance = (x - mean).square().mean(0)
        if x.dtype == torch.float32:
            # The less careful of two common ways each: single precision is here to tell how far off
            # sound code may be.
            variance = (x.square().mean(0) - mean.square()).clamp(min=0.0)
            if scene.plain_means:
                mean = mean + (plain_mean(x.detach()) - mean).detach()
        statistics.pending.append((mean.detach(), variance.detach(), len(x)))
        if not scene.deferred:
            move(statistics)
    deviation, weight, bias = (variance + EPS).sqrt(), p[f"{prefix}.weight"], p[f"{prefix}.bias"]
    if x.dtype == torch.float32:
        mean, deviation, weight, bias = (
            repeat_rows(each, len(x)) for each in (mean, deviation, weight, bias)
        )
    return (x - mean) / deviation * weight + bias


def plain_mean(x: Tensor) -> Tensor:
    """`[channels]`, of rows that are added one after another, as torch's own BatchNorm does.

    What this is off by, all rows have in common; where they are nearly alike it is much of what
    the normalisation leaves of them.
    """
    return _plain_sum(x) / len(x)


def _plain_sum(x: Tensor) -> Tensor:
    """Over the rows; numpy's is pairwise along the last axis alone, and plain along the others."""
    return torch.from_numpy(x.contiguous().numpy().sum(0))


def repeat_rows(row: Tensor, rows: int) -> Tensor:
    """`[channels]` as `[rows, channels]`, whose gradient is summed one row after another.

    So torch's own BatchNorm sums it in single precision, which is off by up to `rows` roundings.
    Where every row has the same gradient, as before a sum over the nodes, what should be left of
    it behind the normalisation is nothing, and these roundings are all there is.
    """
    repeated: Tensor = _RepeatRows.apply(row, rows)  # type: ignore[no-untyped-call]
    return repeated


class _RepeatRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, row: Tensor, rows: int) -> Tensor:
        return row.expand(rows, -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _plain_sum(gradient), None


def move(statistics: RunningStatistics) -> None:
    """Move running statistics by those of all pending rows together."""
    if not statistics.pending:
        return
    rows = sum(count for _, _, count in statistics.pending)
    mean = sum((m * n for m, _, n in statistics.pending), torch.zeros(())) / rows
    squares = sum(
        ((v + (m - mean).square()) * n for m, v, n in statistics.pending), torch.zeros(())
    )
    statistics.mean = (1 - MOMENTUM) * statistics.mean + MOMENTUM * mean
    statistics.variance = (1 - MOMENTUM) * statistics.variance + MOMENTUM * squares / (rows - 1)
    statistics.batches += 1
    statistics.pending.clear()
