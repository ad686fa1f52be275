"""GCN, GraphSAGE, GIN and GraphConv: settings and layers on paper.

It imports torch in `build` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts, Kind
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs
from gnnhpc.core.settings import Layers, Positive, Probability
from gnnhpc.models.graph_model import GraphModel, dgl_lacks, layer_spec

if TYPE_CHECKING:
    from torch import nn

Products = tuple[tuple[int, int, bool], ...]
"""Dense products of a convolution: inputs, outputs, and whether it has a bias."""


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
    pooling: Literal["mean", "sum"] = "mean"
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
            products = self._products(width, out)
            multiplications = sum(inputs * outputs for inputs, outputs, _ in products)
            biases = sum(outputs for _, outputs, biased in products if biased)
            cost = 2.0 * multiplications + degree * self._summed(width, out)
            activation = "log_softmax" if last else "relu_dropout"
            layers += (
                layer_spec(
                    *(f"layer{number}.convolution", width, out, "convolution", cost),
                    rows="hop",
                    parameters=multiplications + biases,
                    number=number,
                ),
                layer_spec(
                    *(f"layer{number}.activation", out, out, activation, 8.0 * out), number=number
                ),
            )
            width = out
        return (*layers, *_readout(width, facts)) if pools else tuple(layers)

    def _products(self, inputs: int, outputs: int) -> Products:
        """The dense products of one convolution."""
        raise NotImplementedError

    def _summed(self, inputs: int, outputs: int) -> int:
        """Numbers that one convolution sums for each edge."""
        return min(inputs, outputs)

    def _module(self, layer: LayerSpec) -> nn.Module:
        from gnnhpc.models.layers.dropout_layer import ReluDropout
        from gnnhpc.models.layers.linear import Linear

        inputs, outputs = layer.inputs[0], layer.shape[0]
        match layer.kind:
            case "convolution":
                return self._convolution(layer.number, inputs, outputs)
            case "relu_dropout":
                return ReluDropout(layer.name, self.dropout, fused=self.is_fused)
            case "pooling":
                return self._implemented("Pooling", self.pooling)
        return Linear(inputs, outputs)

    def _convolution(self, hop: int, inputs: int, outputs: int) -> nn.Module:
        return self._implemented(self.layer_class, hop, inputs, outputs)

    def misfit_of_data(self, kind: Kind) -> str | None:
        if kind == "graphs" or self.pooling == "mean":
            return None
        return f"model.pooling: found {self.pooling!r}; allowed: none where nodes are classified"


def _readout(width: int, facts: Facts) -> LayerSpecs:
    """The layers from nodes' rows [width] to log-probabilities of graphs [classes]."""
    classes = facts.classes
    # Costs are for each node, and there are fewer rows after the pooling.
    share = facts.graphs / max(facts.nodes, 1)
    cost, parameters = 2.0 * width * classes * share, width * classes + classes
    last = ("readout.log_softmax", classes, classes, "log_softmax", 8.0 * classes * share)
    return (
        layer_spec("readout.pooling", width, width, "pooling", 2.0 * width, rows="pool"),
        layer_spec("readout.linear", width, classes, "linear", cost, parameters=parameters),
        layer_spec(*last),
    )


class Gcn(Convolutions):
    """Graph convolutional network: Kipf & Welling 2017."""

    uses_edge_weight: ClassVar[bool] = True
    layer_class: ClassVar[str] = "GcnLayer"
    title: ClassVar[str] = "GCN"
    name: Literal["gcn"] = "gcn"

    def _products(self, inputs: int, outputs: int) -> Products:
        return ((inputs, outputs, True),)


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

    def _products(self, inputs: int, outputs: int) -> Products:
        pooled: Products = ((inputs, inputs, True),) if self.aggregator == "pool" else ()
        return ((inputs, outputs, True), (inputs, outputs, False), *pooled)

    def _summed(self, inputs: int, outputs: int) -> int:
        return min(inputs, outputs) if self.aggregator == "mean" else inputs

    def _convolution(self, hop: int, inputs: int, outputs: int) -> nn.Module:
        if self.aggregator == "mean":
            return self._implemented("MeanSageLayer", hop, inputs, outputs)
        pool = self.aggregator == "pool"
        return self._implemented("MaxSageLayer", hop, inputs, outputs, pool=pool)


class Gin(Convolutions):
    """Graph isomorphism network, Xu et al. 2019, with eps 0 and two linear layers without norms."""

    layer_class: ClassVar[str] = "GinLayer"
    title: ClassVar[str] = "GIN"
    name: Literal["gin"] = "gin"

    def _products(self, inputs: int, outputs: int) -> Products:
        return (inputs, outputs, True), (outputs, outputs, True)


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

    def _products(self, inputs: int, outputs: int) -> Products:
        return (inputs, outputs, True), (inputs, outputs, False)
