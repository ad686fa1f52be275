"""ViG's layers: the edges of the pixel grid one by one, hidden layers written out."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.vig.model import Vig
from gnnhpc.validation.reference.forward_pass import Activation, ForwardPass
from gnnhpc.validation.reference.layer import (
    Parameters,
    ReferenceLayer,
    WithoutNorms,
    batch_norm,
    gelu,
    linear,
    linear_values,
    norm_values,
)


@dataclass(frozen=True)
class Residual:
    """x + BN(W2 GELU(f(BN(W1 x)))); an FFN where f is the identity.

    In a Grapher f is PyG's GraphConv: W_rel of the neighbours' sum plus W_root of the node itself.
    """

    name: str
    channels: int
    width: int
    convolves: bool

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values = linear_values("fc1", self.channels, self.width, dtype)
        values |= norm_values("norm1", self.width, dtype)
        if self.convolves:
            values |= linear_values("conv.lin_rel", self.width, self.width, dtype)
            values |= linear_values("conv.lin_root", self.width, self.width, dtype, bias=False)
        values |= linear_values("fc2", self.width, self.channels, dtype)
        return values | norm_values("norm2", self.channels, dtype)

    def norms(self) -> dict[str, int]:
        return {f"{self.name}.norm1": self.width, f"{self.name}.norm2": self.channels}

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        rows = x.reshape(-1, self.channels)
        hidden = batch_norm(linear(rows, p, "fc1"), p, "norm1", f"{self.name}.norm1", here)
        if self.convolves:
            source, target = grid_edges(here.side, len(x))
            neighbors = torch.zeros_like(hidden).index_add(0, target, hidden[source])
            hidden = linear(neighbors, p, "conv.lin_rel") + linear(hidden, p, "conv.lin_root")
        update = linear(gelu(hidden), p, "fc2")
        return x + batch_norm(update, p, "norm2", f"{self.name}.norm2", here).view_as(x)


@dataclass(frozen=True)
class Readout(WithoutNorms):
    """W2 GELU(W1 (sum over the nodes))."""

    channels: int
    width: int
    classes: int

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        return {
            **linear_values("fc1", self.channels, self.width, dtype),
            **linear_values("fc2", self.width, self.classes, dtype),
        }

    def forward(self, x: Activation, p: Parameters, here: ForwardPass) -> Activation:
        assert isinstance(x, Tensor)
        return linear(gelu(linear(x.sum(1), p, "fc1")), p, "fc2")


@functools.cache
def grid_edges(side: int, images: int) -> tuple[Tensor, Tensor]:
    """Source and target of each edge between touching pixels, in all images."""
    place = torch.arange(side * side)
    row, column = place // side, place % side
    sources, targets = [], []
    for down, right in ((d, r) for d in (-1, 0, 1) for r in (-1, 0, 1) if (d, r) != (0, 0)):
        inside = (row + down >= 0) & (row + down < side)
        inside &= (column + right >= 0) & (column + right < side)
        targets.append(place[inside])
        sources.append((place + down * side + right)[inside])
    first = torch.arange(images)[:, None] * (side * side)
    return (first + torch.cat(sources)).flatten(), (first + torch.cat(targets)).flatten()


def vig_layer(model: Vig, spec: LayerSpec) -> ReferenceLayer:
    """One layer of a ViG."""
    channels = spec.inputs[-1]
    if spec.kind == "readout":
        return Readout(channels, model.readout_width, spec.shape[0])
    convolves = spec.kind == "grapher"
    width = model.grapher_width if convolves else model.ffn_width
    return Residual(spec.name, channels, width, convolves)
