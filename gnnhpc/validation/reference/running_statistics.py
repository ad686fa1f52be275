"""Running statistics of BatchNorms that move once a mini-batch, by all of its rows together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

MOMENTUM = 0.1
"""The share by which a mini-batch moves running statistics."""


class RunningStatistics:
    """What the BatchNorms of one replica are given in a mini-batch."""

    def __init__(self) -> None:
        self._given: dict[str, list[tuple[Tensor, Tensor, int]]] = {}
        """BatchNorm -> mean, biased variance and rows of each micro-batch."""

    def follow(self, layers: Mapping[str, nn.Module], repeats: int = 1) -> None:
        """Record what BatchNorms in mode `deferred` are given; rows count `repeats` times."""
        for name, layer in layers.items():
            for path, module in layer.named_modules():
                if isinstance(module, _BatchNorm) and getattr(module, "mode", "micro") != "micro":
                    full = f"{name}.{path}" if path else name
                    module.register_forward_pre_hook(partial(self._record, full, repeats))

    def _record(self, name: str, repeats: int, _module: nn.Module, given: tuple[Any, ...]) -> None:
        rows = given[0].detach()
        statistics = rows.mean(0), rows.var(0, correction=0), len(rows) * repeats
        self._given.setdefault(name, []).append(statistics)

    def move(self, buffers: dict[str, Tensor]) -> None:
        """Move the buffers, by full name, at the mini-batch's end."""
        for name, batches in self._given.items():
            rows = sum(count for _, _, count in batches)
            mean = torch.stack([m * count for m, _, count in batches]).sum(0) / rows
            squares = torch.stack([(v + (m - mean).square()) * n for m, v, n in batches]).sum(0)
            for key, new in (("running_mean", mean), ("running_var", squares / (rows - 1))):
                before = buffers[f"{name}.{key}"]
                buffers[f"{name}.{key}"] = (1 - MOMENTUM) * before + MOMENTUM * new
            tracked = f"{name}.num_batches_tracked"
            buffers[tracked] = buffers[tracked] + 1
        self._given.clear()
