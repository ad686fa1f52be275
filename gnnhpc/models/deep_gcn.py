"""Deep GCNs, ResGCN and GCNII: settings and layers on paper. It imports torch in `build` only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs
from gnnhpc.core.settings import Layers, Positive, Probability
from gnnhpc.models.libraries import (
    Implementation,
    build_implementation,
    check_library,
    dgl_lacks,
    implementation_note,
)
from gnnhpc.models.model import BuildOptions, Model, Outputs

if TYPE_CHECKING:
    import torch
    from torch import nn


class Deep(Model, use_attribute_docstrings=True):
    """A linear layer, many convolutions of one width, a linear layer, log-softmax."""

    outputs: ClassVar[Outputs] = "log_probabilities"
    uses_batchnorm: ClassVar[bool] = False
    uses_edge_weight: ClassVar[bool] = True
    sparse_inputs: ClassVar[bool] = True
    inner: ClassVar[int]
    """Numbers of each node between layers, in multiples of `hidden`."""

    layers: Annotated[Layers, Field(ge=1)] = 32
    """Convolutions."""
    hidden: Positive = 64
    dropout: Probability = 0.5
    implementation: Implementation = "fused"

    def outline(self, facts: Facts) -> LayerSpecs:
        degree = facts.edges / max(facts.nodes, 1) + 1
        hidden, inner = self.hidden, self.inner * self.hidden
        entry = LayerSpec(
            "input",
            (facts.features,),
            (inner,),
            kind="input",
            parameters=facts.features * hidden + hidden,
            cost=2.0 * facts.features * hidden + 8.0 * inner,
        )
        middle = tuple(
            LayerSpec(
                f"layer{number}",
                (inner,),
                (inner,),
                kind="convolution",
                rows="hop",
                parameters=self._parameters(),
                cost=2.0 * hidden * hidden + degree * hidden + 16.0 * inner,
                group="layers",
                number=number,
            )
            for number in range(self.layers)
        )
        readout = LayerSpec(
            "readout",
            (inner,),
            (facts.classes,),
            kind="readout",
            parameters=hidden * facts.classes + facts.classes + self._readout_norm(),
            cost=2.0 * hidden * facts.classes + 8.0 * inner,
        )
        last = LayerSpec(
            "log_softmax",
            (facts.classes,),
            (facts.classes,),
            kind="log_softmax",
            parameters=0,
            cost=8.0 * facts.classes,
        )
        return (entry, *middle, readout, last)

    def _parameters(self) -> int:
        """Numbers in the parameters of one convolution."""
        raise NotImplementedError

    def _readout_norm(self) -> int:
        """Numbers in the parameters of the readout's norm."""
        return 0

    def build(self, layer: LayerSpec, options: BuildOptions) -> nn.Module:
        """All implementations have the same initial values; raises ValueError for another layer."""
        from gnnhpc.models.layers.activations import LogSoftmax

        match layer.kind:
            case "input":
                module = self._input(layer)
            case "convolution":
                module = self._convolution(layer)
            case "readout":
                module = self._readout(layer)
            case "log_softmax":
                module = LogSoftmax()
            case _:
                raise ValueError(f"{layer.name}: a {self.title} has no {layer.kind}")
        return module.to(options.dtype)

    def _input(self, layer: LayerSpec) -> nn.Module:
        raise NotImplementedError

    def _convolution(self, layer: LayerSpec) -> nn.Module:
        raise NotImplementedError

    def _readout(self, layer: LayerSpec) -> nn.Module:
        raise NotImplementedError

    def check_here(self) -> None:
        check_library(self.implementation)

    def implementation_note(self, dtype: torch.dtype, device: torch.device) -> str:
        return implementation_note(self.implementation, "aggregate", dtype, device)


class ResGcn(Deep):
    """A residual GCN of pre-activated blocks: x + GCN(dropout(relu(norm(x)))).

    The order of DeeperGCN's "res+" (Li et al. 2020), with Kipf & Welling's convolution and
    LayerNorm, which chunks of a graph leave exact.
    """

    title: ClassVar[str] = "ResGCN"
    inner: ClassVar[int] = 1

    name: Literal["resgcn"] = "resgcn"

    def _parameters(self) -> int:
        return self.hidden * self.hidden + 3 * self.hidden

    def _readout_norm(self) -> int:
        return 2 * self.hidden

    def _input(self, layer: LayerSpec) -> nn.Module:
        from gnnhpc.models.layers.deep_layers import LinearInput

        fused = self.implementation == "fused"
        return LinearInput(layer.inputs[0], layer.shape[0], fused=fused)

    def _convolution(self, layer: LayerSpec) -> nn.Module:
        sizes = (layer.name, layer.number, self.hidden)
        return build_implementation(
            self.implementation, "ResGcnLayer", *sizes, dropout=self.dropout
        )

    def _readout(self, layer: LayerSpec) -> nn.Module:
        from gnnhpc.models.layers.deep_layers import NormReadout

        fused = self.implementation == "fused"
        sizes = (layer.inputs[0], layer.shape[0])
        return NormReadout(layer.name, *sizes, self.dropout, fused=fused)


class Gcnii(Deep):
    """GCNII, Chen et al. 2020, equation 5: initial residuals and identity mapping.

    Every layer needs the first one's output, so a node's numbers between layers are both: [h | h0].
    """

    title: ClassVar[str] = "GCNII"
    inner: ClassVar[int] = 2

    name: Literal["gcnii"] = "gcnii"
    alpha: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Share of the first layer's output in each layer's input."""
    theta: Annotated[float, Field(gt=0)] = 0.5
    """The weight of layer l has the share log(theta / l + 1), the identity the rest."""

    def misfit(self, chunks: str) -> str | None:
        if self.implementation == "dgl" and chunks == "halo":
            lacking = "GCNII of chunks with a halo"
            return dgl_lacks(lacking, "fused or pyg, or chunks contiguous or clustered")
        return None

    def _parameters(self) -> int:
        return self.hidden * self.hidden

    def _input(self, layer: LayerSpec) -> nn.Module:
        from gnnhpc.models.layers.deep_layers import DoubledInput

        fused = self.implementation == "fused"
        return DoubledInput(layer.name, layer.inputs[0], self.hidden, self.dropout, fused=fused)

    def _convolution(self, layer: LayerSpec) -> nn.Module:
        sizes = (layer.name, layer.number, self.hidden)
        options = {"alpha": self.alpha, "theta": self.theta, "dropout": self.dropout}
        return build_implementation(self.implementation, "GcniiLayer", *sizes, **options)

    def _readout(self, layer: LayerSpec) -> nn.Module:
        from gnnhpc.models.layers.deep_layers import HalfReadout

        return HalfReadout(self.hidden, layer.shape[0])
