"""GCN, GraphSAGE, GIN and GraphConv: settings and layers on paper.

It imports torch in `build` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts, Kind
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs
from gnnhpc.core.settings import Layers, Positive, Probability
from gnnhpc.models.graph_model import GraphModel, build_implementation, dgl_lacks, layer_spec
from gnnhpc.models.pooling import READOUT, Pooling, build_readout, pooling_misfit, readout

if TYPE_CHECKING:
    from torch import nn


class Convolutions(GraphModel):
    """Convolutions with ReLU and dropout between them, and log-softmax after the last.

    The order is that of PyG's BasicGNN, without dropout of the features. Where graphs are
    classified, ReLU and dropout follow the last convolution too, then pooling, a linear layer and
    log-softmax.
    """

    takes: ClassVar[tuple[Kind, ...]] = ("graph", "graphs")
    indexed_inputs: ClassVar[bool] = True

    layers: Annotated[Layers, Field(ge=1)] = 2
    """Convolutions; each is two modules: convolution, activation."""
    hidden: Positive = 64
    """Width of every layer but the last; where graphs are classified, of every convolution."""
    dropout: Probability = 0.5
    """Dropout probability of the activations between convolutions."""
    pooling: Pooling = "mean"
    """How a graph's nodes become one row, where graphs are classified."""
    layer_class: ClassVar[str]
    """The name of the class of one convolution, the same in every implementation."""

    def outline(self, facts: Facts) -> LayerSpecs:
        layers: list[LayerSpec] = []
        width = facts.features
        pools = facts.kind == "graphs"
        degree = facts.edges / max(facts.nodes, 1)
        for number in range(self.layers):
            last = number == self.layers - 1 and not pools
            out = facts.classes if last else self.hidden
            cost = 2.0 * self._products(width, out) + degree * self._summed(width, out)
            activation = "log_softmax" if last else "relu_dropout"
            layers += (
                layer_spec(
                    *(f"layer{number}.convolution", width, out, "convolution", cost),
                    rows="hop",
                    parameters=self._parameters(width, out),
                    number=number,
                ),
                layer_spec(
                    *(f"layer{number}.activation", out, out, activation, 8.0 * out), number=number
                ),
            )
            width = out
        return (*layers, *readout(width, facts)) if pools else tuple(layers)

    def _parameters(self, inputs: int, outputs: int) -> int:
        """Numbers in the parameters of one convolution."""
        raise NotImplementedError

    def _products(self, inputs: int, outputs: int) -> int:
        """Multiplications for each node in one convolution's dense products."""
        raise NotImplementedError

    def _summed(self, inputs: int, outputs: int) -> int:
        """Numbers that one convolution sums for each edge."""
        return min(inputs, outputs)

    def _module(self, layer: LayerSpec) -> nn.Module | None:
        from gnnhpc.models.layers.activations import ReluDropout

        if layer.name.startswith(READOUT):
            return build_readout(layer, self.pooling, self.implementation)
        if layer.kind == "relu_dropout":
            return ReluDropout(layer.name, self.dropout, fused=self.is_fused)
        if layer.kind != "convolution":
            return None
        sizes = (layer.number, layer.inputs[0], layer.shape[0])
        return build_implementation(
            self.implementation, self.layer_class, *sizes, **self._options()
        )

    def _options(self) -> dict[str, object]:
        """Arguments of one convolution besides its sizes."""
        return {}

    def misfit_of_data(self, kind: Kind) -> str | None:
        return pooling_misfit(self.pooling, kind)


class Gcn(Convolutions):
    """Graph convolutional network: Kipf & Welling 2017."""

    uses_edge_weight: ClassVar[bool] = True
    layer_class: ClassVar[str] = "GcnLayer"
    title: ClassVar[str] = "GCN"
    name: Literal["gcn"] = "gcn"

    def _parameters(self, inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    def _products(self, inputs: int, outputs: int) -> int:
        return inputs * outputs


class Sage(Convolutions):
    """GraphSAGE, Hamilton et al. 2017, over whole neighbourhoods."""

    title: ClassVar[str] = "GraphSAGE"
    name: Literal["sage"] = "sage"
    aggregator: Literal["mean", "max", "pool"] = "mean"
    """`pool` takes the largest of relu(W x + b), `max` that of x itself."""

    def misfit(self) -> str | None:
        if self.implementation == "dgl" and self.aggregator == "max":
            return dgl_lacks("aggregator max", "fused or pyg, or aggregator mean or pool")
        return None

    def _parameters(self, inputs: int, outputs: int) -> int:
        pooled = inputs * inputs + inputs if self.aggregator == "pool" else 0
        return 2 * inputs * outputs + outputs + pooled

    def _products(self, inputs: int, outputs: int) -> int:
        return 2 * inputs * outputs + (inputs * inputs if self.aggregator == "pool" else 0)

    def _summed(self, inputs: int, outputs: int) -> int:
        return min(inputs, outputs) if self.aggregator == "mean" else inputs

    @property
    def layer_class(self) -> str:  # type: ignore[override]
        return "MeanSageLayer" if self.aggregator == "mean" else "MaxSageLayer"

    def _options(self) -> dict[str, object]:
        return {} if self.aggregator == "mean" else {"pool": self.aggregator == "pool"}


class Gin(Convolutions):
    """Graph isomorphism network, Xu et al. 2019, with eps 0 and two linear layers without norms."""

    layer_class: ClassVar[str] = "GinLayer"
    title: ClassVar[str] = "GIN"
    name: Literal["gin"] = "gin"

    def _parameters(self, inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs + outputs * outputs + outputs

    def _products(self, inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs * outputs


class GraphConv(Convolutions):
    """The sum over neighbours and the node itself, each with its own weight: Morris et al. 2019."""

    uses_edge_weight: ClassVar[bool] = True
    layer_class: ClassVar[str] = "GraphConvLayer"
    title: ClassVar[str] = "GraphConv"
    name: Literal["graphconv"] = "graphconv"

    def misfit(self) -> str | None:
        if self.implementation == "dgl":
            return dgl_lacks("GraphConv of Morris et al., its own being the GCN")
        return None

    def _parameters(self, inputs: int, outputs: int) -> int:
        return 2 * inputs * outputs + outputs

    def _products(self, inputs: int, outputs: int) -> int:
        return 2 * inputs * outputs
