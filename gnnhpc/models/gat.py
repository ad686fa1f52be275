"""GAT and GATv2: settings and layers on paper. It imports torch in `build` only."""

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
    implementation_note,
)
from gnnhpc.models.model import BuildOptions, Model, Outputs

if TYPE_CHECKING:
    import torch
    from torch import nn


class Gat(Model, use_attribute_docstrings=True):
    """Graph attention network of Velickovic et al. 2018, as M. T. Dearing and X. Wang train it."""

    outputs: ClassVar[Outputs] = "log_probabilities"
    uses_batchnorm: ClassVar[bool] = False
    title: ClassVar[str] = "GAT"
    sparse_inputs: ClassVar[bool] = True
    indexed_inputs: ClassVar[bool] = True

    name: Literal["gat"] = "gat"
    layers: Annotated[Layers, Field(ge=2)] = 2
    """Attention layers; each is three modules: dropout, attention, activation."""
    heads: Positive = 8
    hidden: Positive = 8
    """Channels of a head in every layer but the last."""
    dropout: Probability = 0.6
    """Dropout probability of features and of attention coefficients."""
    implementation: Implementation = "fused"
    """`fused` computes the libraries' function over sorted edges."""

    layer_class: ClassVar[str] = "GatLayer"

    def outline(self, facts: Facts) -> LayerSpecs:
        layers: list[LayerSpec] = []
        width = facts.features
        for number in range(self.layers):
            attention = self._attention(number, width, facts)
            (out,) = attention.shape
            activation = "log_softmax" if self._is_last(number) else "elu"
            layers += (
                self._rowwise("dropout", number, width, 4.0),
                attention,
                self._rowwise(activation, number, out, 8.0),
            )
            width = out
        return tuple(layers)

    def _is_last(self, number: int) -> bool:
        return number == self.layers - 1

    def _attention(self, number: int, width: int, facts: Facts) -> LayerSpec:
        degree = facts.edges / max(facts.nodes, 1) + 1
        channels = facts.classes if self._is_last(number) else self.hidden
        hidden = self.heads * channels
        out = channels if self._is_last(number) else hidden
        return LayerSpec(
            f"layer{number}.attention",
            (width,),
            (out,),
            kind="attention",
            rows="hop",
            parameters=self._parameters(width, hidden) + out,
            cost=self._cost(width, hidden, degree),
            number=number,
        )

    def _parameters(self, inputs: int, hidden: int) -> int:
        """Numbers in a weight and two attention vectors, without the layer's bias."""
        return inputs * hidden + 2 * hidden

    def _cost(self, inputs: int, hidden: int, degree: float) -> float:
        return 2.0 * inputs * hidden + degree * (2 * hidden + 8 * self.heads)

    @staticmethod
    def _rowwise(kind: str, number: int, width: int, cost: float) -> LayerSpec:
        return LayerSpec(
            f"layer{number}.{kind}",
            (width,),
            (width,),
            kind=kind,
            parameters=0,
            cost=cost * width,
            number=number,
        )

    def build(self, layer: LayerSpec, options: BuildOptions) -> nn.Module:
        """All implementations have the same initial values; raises ValueError for another layer."""
        from gnnhpc.models.layers.activations import Elu, LogSoftmax
        from gnnhpc.models.layers.attention_layers import AttentionSettings
        from gnnhpc.models.layers.dropout import Dropout

        if layer.kind == "dropout":
            features = layer.number == 0 and self.implementation == "fused"
            return Dropout(layer.name, self.dropout, before_product=features)
        if layer.kind == "elu":
            return Elu()
        if layer.kind == "log_softmax":
            return LogSoftmax()
        if layer.kind != "attention":
            raise ValueError(f"{layer.name}: a GAT has no {layer.kind}")
        last = self._is_last(layer.number)
        settings = AttentionSettings(
            layer.name,
            layer.number,
            layer.inputs[0],
            layer.shape[0] if last else self.hidden,
            self.heads,
            average=last,
            dropout=self.dropout,
        )
        attention = build_implementation(self.implementation, self.layer_class, settings)
        # Converted from single precision: a model in float64 starts from the same values.
        return attention.to(options.dtype)

    def check_here(self) -> None:
        check_library(self.implementation)

    def implementation_note(self, dtype: torch.dtype, device: torch.device) -> str:
        return implementation_note(self.implementation, "attention", dtype, device)


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
