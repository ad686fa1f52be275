"""GAT and GATv2: settings and layers on paper. It imports torch in `build` only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs
from gnnhpc.core.settings import Layers, Positive, Probability
from gnnhpc.models.graph_model import GraphModel, layer_spec

if TYPE_CHECKING:
    from torch import nn


class Gat(GraphModel):
    """Graph attention network of Velickovic et al. 2018, as M. T. Dearing and X. Wang train it."""

    title: ClassVar[str] = "GAT"
    indexed_inputs: ClassVar[bool] = True
    kernel: ClassVar[str] = "attention"
    layer_class: ClassVar[str] = "GatLayer"

    name: Literal["gat"] = "gat"
    layers: Annotated[Layers, Field(ge=2)] = 2
    """Attention layers; each is three modules: dropout, attention, activation."""
    heads: Positive = 8
    hidden: Positive = 8
    """Channels of a head in every layer but the last."""
    dropout: Probability = 0.6
    """Dropout probability of features and of attention coefficients."""

    def outline(self, facts: Facts) -> LayerSpecs:
        layers: list[LayerSpec] = []
        width, degree = facts.features, facts.edges / max(facts.nodes, 1) + 1
        for number in range(self.layers):
            last = number == self.layers - 1
            hidden = self.heads * (facts.classes if last else self.hidden)
            out = facts.classes if last else hidden
            layer, activation = f"layer{number}.", "log_softmax" if last else "elu"
            parameters = self._parameters(width, hidden) + out
            cost = self._cost(width, hidden, degree)
            layers += (
                layer_spec(f"{layer}dropout", width, width, "dropout", 4.0 * width, number=number),
                layer_spec(
                    *(f"{layer}attention", width, out, "attention", cost),
                    rows="hop",
                    parameters=parameters,
                    number=number,
                ),
                layer_spec(f"{layer}{activation}", out, out, activation, 8.0 * out, number=number),
            )
            width = out
        return tuple(layers)

    def _parameters(self, inputs: int, hidden: int) -> int:
        """Numbers in a weight and two attention vectors, without the layer's bias."""
        return inputs * hidden + 2 * hidden

    def _cost(self, inputs: int, hidden: int, degree: float) -> float:
        return 2.0 * inputs * hidden + degree * (2 * hidden + 8 * self.heads)

    def _module(self, layer: LayerSpec) -> nn.Module:
        from gnnhpc.kernels.attention import Heads
        from gnnhpc.models.layers.attention_layers import AttentionSettings
        from gnnhpc.models.layers.dropout_layer import Dropout, Elu

        if layer.kind == "dropout":
            features = layer.number == 0 and self.is_fused
            return Dropout(layer.name, self.dropout, before_product=features)
        if layer.kind == "elu":
            return Elu()
        last = layer.number == self.layers - 1
        heads = Heads(self.heads, layer.shape[0] if last else self.hidden, average=last)
        sizes = (layer.name, layer.number, layer.inputs[0], heads, self.dropout)
        return self._implemented(self.layer_class, AttentionSettings(*sizes))


class Gatv2(Gat):
    """GATv2 of Brody et al. 2022: the same network with scores that rank neighbours by target."""

    title: ClassVar[str] = "GATv2"
    layer_class: ClassVar[str] = "Gatv2Layer"

    name: Literal["gatv2"] = "gatv2"  # type: ignore[assignment]

    def _parameters(self, inputs: int, hidden: int) -> int:
        """Numbers in two weights with biases and an attention vector, without the layer's bias."""
        return 2 * (inputs * hidden + hidden) + hidden

    def _cost(self, inputs: int, hidden: int, degree: float) -> float:
        return 4.0 * inputs * hidden + degree * (6 * hidden + 8 * self.heads)
