"""From a layer on paper to a module; the one place that knows which file builds which model."""

from __future__ import annotations

import torch
from torch import nn

from gnnhpc.models.outline import LayerOutline
from gnnhpc.spec import Experiment, VigConfig


def build_layer(layer: LayerOutline, experiment: Experiment) -> nn.Module:
    """One layer, its parameters drawn from torch's global generator."""
    dtype = getattr(torch, experiment.dtype)
    if isinstance(experiment.model, VigConfig):
        from gnnhpc.models.vig import build as build_vig

        return build_vig(layer, experiment.model, dtype=dtype, batchnorm=experiment.batchnorm)
    from gnnhpc.models.gat import build as build_gat

    return build_gat(layer, experiment.model, dtype=dtype)
