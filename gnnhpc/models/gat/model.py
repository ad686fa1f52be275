"""GAT: settings, layers on paper, and which code builds each. Free of torch until one is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from gnnhpc.core.facts import Facts
from gnnhpc.core.outline import LayerOutline, Outlines
from gnnhpc.core.settings import Positive, Probability, Whole
from gnnhpc.models.protocol import BuildOptions, Model, Outputs

if TYPE_CHECKING:
    import torch
    from torch import nn


class Gat(Model):
    """Graph attention network of Velickovic et al. 2018, as Dearing & Wang train it."""

    outputs: ClassVar[Outputs] = "log_probabilities"
    uses_batchnorm: ClassVar[bool] = False
    title: ClassVar[str] = "GAT"
    sparse_inputs: ClassVar[bool] = True

    name: Literal["gat"] = "gat"
    layers: Annotated[Whole, Field(ge=2)] = 2
    """Attention layers; each is three modules: dropout, attention, activation."""
    heads: Positive = 8
    hidden: Positive = 8
    """Channels a head in every layer but the last."""
    dropout: Probability = 0.6
    """Dropout on features and on attention coefficients."""
    implementation: Literal["fused", "reference"] = "fused"
    """`reference` is PyG's GATConv; `fused` the same function over sorted segments."""

    def outline(self, facts: Facts) -> Outlines:
        layers: list[LayerOutline] = []
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

    def _attention(self, number: int, width: int, facts: Facts) -> LayerOutline:
        """Weight, two attention vectors, bias: all heads' if concatenated, one's if averaged."""
        degree = facts.edges / max(facts.nodes, 1) + 1
        channels = facts.classes if self._is_last(number) else self.hidden
        hidden = self.heads * channels
        out = channels if self._is_last(number) else hidden
        return LayerOutline(
            f"layer{number}.attention",
            (width,),
            (out,),
            kind="attention",
            rows="hop",
            parameters=width * hidden + 2 * hidden + out,
            cost=2.0 * width * hidden + degree * (2 * hidden + 8 * self.heads),
            number=number,
        )

    @staticmethod
    def _rowwise(kind: str, number: int, width: int, cost: float) -> LayerOutline:
        return LayerOutline(
            f"layer{number}.{kind}",
            (width,),
            (width,),
            kind=kind,
            parameters=0,
            cost=cost * width,
            number=number,
        )

    def build(self, layer: LayerOutline, options: BuildOptions) -> nn.Module:
        """Both implementations have the same initial values; ValueError for an unknown layer."""
        from gnnhpc.models.dropout import Dropout
        from gnnhpc.models.gat.activations import Elu, LogSoftmax

        if layer.kind == "dropout":
            return Dropout(layer.name, self.dropout)
        if layer.kind == "elu":
            return Elu()
        if layer.kind == "log_softmax":
            return LogSoftmax()
        if layer.kind != "attention":
            raise ValueError(f"{layer.name}: a GAT has no {layer.kind}")
        last = self._is_last(layer.number)
        attention = self._attention_class()(
            layer.name,
            layer.number,
            layer.inputs[0],
            layer.shape[0] if last else self.hidden,
            self.heads,
            average=last,
            dropout=self.dropout,
        )
        # Drawn in single precision and converted: a double-precision model starts from the same.
        return attention.to(options.dtype)

    def _attention_class(self) -> type[nn.Module]:
        # PyG takes seconds to import; the fused implementation does not need it.
        if self.implementation == "fused":
            from gnnhpc.models.gat.fused import FusedAttention

            return FusedAttention
        from gnnhpc.models.gat.reference import ReferenceAttention

        return ReferenceAttention

    def implementation_note(self, dtype: torch.dtype, device: torch.device) -> str:
        if self.implementation == "reference":
            return "reference"
        import torch

        from gnnhpc.kernels import kernel_traits
        from gnnhpc.kernels.gat import fits

        if fits(torch.empty(0, dtype=dtype, device=device)):
            return f"fused/c++{kernel_traits('gat')}"
        return "fused/torch"
