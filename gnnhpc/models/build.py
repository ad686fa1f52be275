"""From a layer on paper to a module; the one place that knows which file builds which model."""

from __future__ import annotations

import torch
from torch import nn

from gnnhpc.models.outline import LayerOutline
from gnnhpc.spec.experiment import Experiment, VigConfig


def build_layer(layer: LayerOutline, experiment: Experiment) -> nn.Module:
    """One layer, its parameters drawn from torch's global generator."""
    dtype = getattr(torch, experiment.dtype)
    if isinstance(experiment.model, VigConfig):
        from gnnhpc.models.vig.reference import build as build_vig

        return build_vig(layer, experiment.model, dtype=dtype, batchnorm=experiment.batchnorm)
    from gnnhpc.models.gat.layers import build as build_gat

    return build_gat(layer, experiment.model, dtype=dtype)


def implementation_note(experiment: Experiment, device: torch.device) -> str:
    """Which code computes the model here, such as `fused/c++ avx512`; compiles it if need be."""
    dtype = getattr(torch, experiment.dtype)
    if isinstance(experiment.model, VigConfig):
        from gnnhpc.models.vig.reference import implementation_note as vig_note

        return vig_note(experiment.model, dtype, device)
    if experiment.model.implementation == "reference":
        return "reference"
    from gnnhpc.kernels.gat import fits

    return "fused/c++" if fits(torch.empty(0, dtype=dtype, device=device)) else "fused/torch"
