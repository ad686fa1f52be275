"""From a layer of ViG on paper to a module, in the implementation that its settings name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from gnnhpc.core.outline import LayerOutline
from gnnhpc.models.protocol import BatchNormMode
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from gnnhpc.models.vig.parameters import CHANNELS
from gnnhpc.models.vig.reference import Ffn, Grapher, Readout

if TYPE_CHECKING:
    from gnnhpc.models.vig.model import Vig


def build(
    layer: LayerOutline,
    config: Vig,
    *,
    dtype: torch.dtype,
    batchnorm: BatchNormMode = "micro",
) -> nn.Module:
    """One layer of the model, its parameters drawn from torch's generator.

    Both implementations draw the same values. Raises ValueError for a layer that is no ViG
    layer, or whose images are not square with three channels.
    """
    nodes, channels = layer.inputs
    side = math.isqrt(nodes)
    if side * side != nodes or channels != CHANNELS:
        raise ValueError(f"{layer.name}: square images of {CHANNELS} channels, not {layer.inputs}")
    if layer.kind == "readout":
        return Readout(config.readout_width, layer.shape[0], dtype=dtype)
    fused = config.implementation == "fused"
    if layer.kind == "grapher":
        grapher = FusedGrapher if fused else Grapher
        return grapher((side, side), config.grapher_width, batchnorm=batchnorm, dtype=dtype)
    if layer.kind == "ffn":
        ffn = FusedFfn if fused else Ffn
        return ffn(config.ffn_width, batchnorm=batchnorm, dtype=dtype)
    raise ValueError(f"{layer.name}: no ViG layer is a {layer.kind}")
