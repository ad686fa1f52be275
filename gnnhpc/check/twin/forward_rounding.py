"""Draws of what rounding makes of a forward pass, for a twin in single precision.

A normalisation of rows that are nearly alike, or a softmax, may make a common change of its inputs
a hundred times as large. Whether single precision's own sums happen to be off in that direction is
chance: the same layers once more, each output off by one rounding, are another draw of it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.check.twin.layer import Parameters, TwinLayer
from gnnhpc.check.twin.scene import Scene, SparseInput


class ForwardRounding:
    """One draw: each number is off by as much as its own last digit, up or down.

    The first draw (0) has all of them larger, as where all rows share one error.
    """

    def __init__(self, draw: int) -> None:
        self.draw = draw
        self._signs = torch.Generator().manual_seed(draw)

    def of(self, x: Tensor) -> Tensor:
        """`x` with its errors; the gradient on its way back is off by the same share."""
        signs = torch.ones_like(x)
        if self.draw:
            signs = torch.randint(0, 2, x.shape, generator=self._signs).to(x.dtype) * 2 - 1
        return x * (1.0 + torch.finfo(x.dtype).eps * signs)


@dataclass(frozen=True)
class RoundedLayer:
    """A layer of the twin whose output is off by one rounding."""

    layer: TwinLayer
    rounding: ForwardRounding

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return self.layer.initial(dtype)

    def norms(self) -> dict[str, int]:
        return self.layer.norms()

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor | SparseInput:
        output = self.layer.forward(x, p, scene)
        if isinstance(output, Tensor):
            return self.rounding.of(output)
        return dataclasses.replace(output, value=self.rounding.of(output.value))
