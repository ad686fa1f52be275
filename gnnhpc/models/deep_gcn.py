"""Deep GCNs, ResGCN and GCNII: settings and layers on paper. It imports torch in `build` only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs
from gnnhpc.core.settings import Layers, Positive, Probability
from gnnhpc.models.graph_model import GraphModel, dgl_lacks, layer_spec

if TYPE_CHECKING:
    from torch import nn


class Deep(GraphModel):
    """A linear layer, many convolutions of one width, a linear layer, log-softmax."""

    uses_edge_weight: ClassVar[bool] = True
    inner: ClassVar[int]
    """Numbers of each node between layers, in multiples of `hidden`."""

    layers: Annotated[Layers, Field(ge=1)] = 32
    """Convolutions."""
    hidden: Positive = 64
    dropout: Probability = 0.5

    def outline(self, facts: Facts) -> LayerSpecs:
        degree = facts.edges / max(facts.nodes, 1) + 1
        hidden, inner = self.hidden, self.inner * self.hidden
        into, out_of = facts.features * hidden, hidden * facts.classes
        entry = layer_spec(
            *("input", facts.features, inner, "input", 2.0 * into + 8.0 * inner),
            parameters=into + hidden,
        )
        cost = 2.0 * hidden * hidden + degree * hidden + 16.0 * inner
        middle = tuple(
            layer_spec(
                *(f"layer{number}", inner, inner, "convolution", cost),
                rows="hop",
                parameters=self._parameters(),
                group="layers",
                number=number,
            )
            for number in range(self.layers)
        )
        readout = layer_spec(
            *("readout", inner, facts.classes, "readout", 2.0 * out_of + 8.0 * inner),
            parameters=out_of + facts.classes + self._readout_norm(),
        )
        last = layer_spec(
            *("log_softmax", facts.classes, facts.classes, "log_softmax", 8.0 * facts.classes)
        )
        return (entry, *middle, readout, last)

    def _parameters(self) -> int:
        """Numbers in the parameters of one convolution."""
        raise NotImplementedError

    def _readout_norm(self) -> int:
        """Numbers in the parameters of the readout's norm."""
        return 0


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

    def _module(self, layer: LayerSpec) -> nn.Module:
        from gnnhpc.models.layers.deep_layers import LinearInput, NormReadout

        inputs, outputs = layer.inputs[0], layer.shape[0]
        if layer.kind == "input":
            return LinearInput(inputs, outputs, fused=self.is_fused)
        if layer.kind == "readout":
            return NormReadout(layer.name, inputs, outputs, self.dropout, fused=self.is_fused)
        sizes = (layer.name, layer.number, self.hidden)
        return self._implemented("ResGcnLayer", *sizes, dropout=self.dropout)


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

    def misfit(self) -> str | None:
        return dgl_lacks("GCNII of chunks with a halo") if self.implementation == "dgl" else None

    def _parameters(self) -> int:
        return self.hidden * self.hidden

    def _module(self, layer: LayerSpec) -> nn.Module:
        from gnnhpc.models.layers.deep_layers import DoubledInput, HalfReadout

        name, hidden = layer.name, self.hidden
        if layer.kind == "input":
            return DoubledInput(name, layer.inputs[0], hidden, self.dropout, fused=self.is_fused)
        if layer.kind == "readout":
            return HalfReadout(hidden, layer.shape[0])
        options = {"alpha": self.alpha, "theta": self.theta, "dropout": self.dropout}
        return self._implemented("GcniiLayer", name, layer.number, hidden, **options)
