"""What the reference's layers compute by documented rules: dropout masks, running statistics.

The layers of the reference are the run's own in plain torch; these come from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gnnhpc.kernels.dropout_mask import Mask

MOMENTUM = 0.1
"""The share by which a mini-batch moves running statistics."""
_HALF = np.uint64(2**32)
_FIRST, _SECOND = np.uint64(0x21F0AAAD), np.uint64(0x735A2D97)


class MaskByRule(Mask):
    """A mask whose entries are hashed by numpy.

    Each half of the key is added to an entry's number before a round of multiplying and shifting;
    an entry whose result is below p * 2**32 is dropped.
    """

    def keeps(self, entries: Tensor) -> Tensor:
        first, second = np.uint64(int(self.first)), np.uint64(int(self.second))
        number = (entries.numpy().astype(np.uint64) + first) % _HALF
        number = (number ^ (number >> np.uint64(16))) * _FIRST % _HALF
        number = (number ^ (number >> np.uint64(15))) + second
        number = number % _HALF * _SECOND % _HALF
        number ^= number >> np.uint64(15)
        return torch.from_numpy(number >= np.uint64(self.threshold))


@dataclass(frozen=True)
class MasksByRule:
    """The masks of one step; an evaluation has none."""

    step: int
    training: bool

    def mask(self, seed: int, name: str, p: float) -> Mask | None:
        """The mask of layer `name`, which drops the share `p`.

        Its key is the first two 32-bit numbers of the SHA-256 of "<seed>/<step>/<name>".
        """
        if not self.training or not p:
            return None
        digest = hashlib.sha256(f"{seed}/{self.step}/{name}".encode()).hexdigest()
        least = min(round(p * 2**32), 2**32 - 1)
        return MaskByRule(int(digest[:8], 16), int(digest[8:16], 16), least, 1.0 / (1.0 - p))


class RunningStatistics:
    """Running statistics of one replica that move once a mini-batch, by all of its rows together.

    They come from what its BatchNorms are given.
    """

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
