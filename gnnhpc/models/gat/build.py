"""The graph attention network of Velickovic et al. 2018, as Dearing & Wang train it, by layers.

A layer of the paper is three modules: dropout, attention, activation; PyG's GATConv and the
fused attention are interchangeable in the middle one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from gnnhpc.core.outline import LayerOutline
from gnnhpc.models.context import Context
from gnnhpc.models.dropout import Dropout
from gnnhpc.models.gat.fused import FusedAttention

if TYPE_CHECKING:
    from gnnhpc.models.gat.model import Gat


class Elu(nn.Module):
    """[rows, features] -> the same shape."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return functional.elu(x)


class LogSoftmax(nn.Module):
    """[rows, classes] -> log-probabilities."""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return functional.log_softmax(x, dim=-1)


def build(layer: LayerOutline, config: Gat, *, dtype: torch.dtype) -> nn.Module:
    """One module of the model; parameters are drawn from torch's global generator.

    Raises ValueError for a layer of another model.
    """
    number = layer.number
    if layer.kind == "dropout":
        return Dropout(layer.name, config.dropout)
    if layer.kind == "elu":
        return Elu()
    if layer.kind == "log_softmax":
        return LogSoftmax()
    if layer.kind != "attention":
        raise ValueError(f"{layer.name}: a GAT has no {layer.kind}")
    last = number == config.layers - 1
    attention = _attention(config)(
        layer.name,
        number,
        layer.inputs[0],
        layer.shape[0] if last else config.hidden,
        config.heads,
        average=last,
        dropout=config.dropout,
    )
    # Drawn in single precision and converted: a double-precision model starts from the same.
    return attention.to(dtype)


def _attention(config: Gat) -> type[nn.Module]:
    if config.implementation == "fused":
        return FusedAttention
    # PyG takes seconds to import; fused runs do without.
    from gnnhpc.models.gat.reference import ReferenceAttention

    return ReferenceAttention
