"""ViG: settings and layers on paper. It imports torch in `build` only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts, Kind
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs
from gnnhpc.core.settings import Layers, Positive
from gnnhpc.models.model import BuildOptions, Model

if TYPE_CHECKING:
    import torch
    from torch import nn

# Cost of a hidden unit's GELU, forward and backward, in multiply-adds. In the fused implementation
# it is more than that of the small products around it.
_GELU = 24.0
# Cost of the rest of a fused Grapher for each hidden unit. It makes FFN : Grapher the 1.36 that a
# profile (balance: profile) measures on one thread with 20 images or more.
_FOLDED = 17.0


class Vig(Model, use_attribute_docstrings=True):
    """Vision GNN over a pixel grid, as J. Raffi's study builds it."""

    takes: ClassVar[tuple[Kind, ...]] = ("images",)
    title: ClassVar[str] = "ViG"

    name: Literal["vig"] = "vig"
    blocks: Annotated[Layers, Field(ge=1)] = 8
    """Grapher + FFN pairs."""
    grapher_width: Positive = 256
    """Hidden channels of the Grapher."""
    ffn_width: Positive = 512
    """Hidden channels of the FFN."""
    readout_width: Positive = 1024
    """Hidden channels of the readout."""
    implementation: Literal["fused", "pyg"] = "fused"
    """`pyg` uses PyG's GraphConv; `fused` computes the same without large intermediate tensors."""

    def outline(self, facts: Facts) -> LayerSpecs:
        layers: list[LayerSpec] = []
        for block in range(self.blocks):
            layers += (self._grapher(block, facts), self._ffn(block, facts))
        return (*layers, self._readout(facts))

    def _grapher(self, block: int, facts: Facts) -> LayerSpec:
        """Linear c->g, BatchNorm, GraphConv (two g x g products, bias), Linear g->c, BatchNorm."""
        nodes, c, g = facts.image_size**2, facts.features, self.grapher_width
        if self.implementation == "pyg":
            cost = nodes * (2.0 * g * g + g * (2 * c + _GELU) + 8 * 3 * g)
        else:
            cost = nodes * g * (_FOLDED + c + _GELU)
        parameters = (c * g + g) + 2 * g + (2 * g * g + g) + (g * c + c) + 2 * c
        name, shape = f"block{block}.grapher", (nodes, c)
        return LayerSpec(name, shape, shape, "grapher", parameters=parameters, cost=cost)

    def _ffn(self, block: int, facts: Facts) -> LayerSpec:
        nodes, c, f = facts.image_size**2, facts.features, self.ffn_width
        parameters = (c * f + f) + 2 * f + (f * c + c) + 2 * c
        name, shape, cost = f"block{block}.ffn", (nodes, c), nodes * f * (2 * c + _GELU)
        return LayerSpec(name, shape, shape, "ffn", parameters=parameters, cost=cost)

    def _readout(self, facts: Facts) -> LayerSpec:
        nodes, c, r = facts.image_size**2, facts.features, self.readout_width
        parameters = (c * r + r) + (r * facts.classes + facts.classes)
        shapes, cost = ((nodes, c), (facts.classes,)), nodes * c + r * (c + 10 + _GELU)
        return LayerSpec("readout", *shapes, "readout", parameters=parameters, cost=cost)

    def build(self, layer: LayerSpec, options: BuildOptions) -> nn.Module:
        """Build one layer of square images of three channels; both implementations have the same
        initial values."""
        from gnnhpc.models.vig import fused, reference

        side, dtype, batchnorm = math.isqrt(layer.inputs[0]), options.dtype, options.batchnorm
        is_fused = self.implementation == "fused"
        if layer.kind == "readout":
            return reference.Readout(self.readout_width, layer.shape[0], dtype=dtype)
        if layer.kind == "grapher":
            grapher = fused.FusedGrapher if is_fused else reference.PygGrapher
            return grapher((side, side), self.grapher_width, batchnorm=batchnorm, dtype=dtype)
        ffn = fused.FusedFfn if is_fused else reference.Ffn
        return ffn(self.ffn_width, batchnorm=batchnorm, dtype=dtype)

    def implementation_note(self, dtype: torch.dtype, device: torch.device) -> str:
        if self.implementation == "pyg":
            return "pyg"
        from gnnhpc.models.vig.fused import note

        return note(dtype, device)
