"""A model of your own: a deep residual GCN of PyG's GCNConv (Kipf & Welling 2017).

Copy this file beside your sweep, change it, and name it there as `deep_gcn:DeepGcn`. `outline` is
asked where you submit; torch is imported in `build`, which runs on the nodes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gnnhpc import BuildOptions, Facts, Layer, Model

if TYPE_CHECKING:
    from torch import Tensor, nn

    from gnnhpc.models.model import Context


class DeepGcn(Model):
    """Linear, then `layers` times x + ReLU(GCNConv(x)), then Linear to the classes."""

    takes = ("graph",)

    layers: Annotated[int, Field(ge=1)] = 8
    """Graph convolutions."""
    hidden: Annotated[int, Field(ge=1)] = 64
    """Channels between the layers."""

    def outline(self, facts: Facts) -> list[Layer]:
        """The layers in order; `rows="hop"` where a node needs its neighbours."""
        hidden, degree = self.hidden, facts.edges / facts.nodes + 1
        encode = Layer("encode", (facts.features,), (hidden,), kind="linear")
        decode = Layer("decode", (hidden,), (facts.classes,), kind="linear")
        convolve = [
            Layer(
                f"conv{number}",
                (hidden,),
                (hidden,),
                kind="conv",
                rows="hop",
                number=number,
                parameters=hidden * hidden + hidden,
                # Relative seconds a node: the product, then a sum over the neighbours.
                cost=2.0 * hidden * hidden + degree * hidden,
            )
            for number in range(self.layers)
        ]
        return [encode, *convolve, decode]

    def build(self, layer: Layer, options: BuildOptions) -> nn.Module:
        """One layer: a module with forward(x, context)."""
        import torch
        from torch import nn
        from torch_geometric.nn import GCNConv

        class Linear(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(layer.inputs[0], layer.shape[0])

            def forward(self, x: Tensor, context: Context) -> Tensor:
                output: Tensor = self.linear(x)
                return output

        class Residual(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                # The chunk knows each node's degree in the graph as it is cut; GCNConv a piece.
                self.conv = GCNConv(layer.inputs[0], layer.shape[0], normalize=False)

            def forward(self, x: Tensor, context: Context) -> Tensor:
                chunk = context.chunk
                block = chunk.blocks[layer.number]
                degree = chunk.degree.to(x.dtype)
                weight = torch.rsqrt(degree[block.source] * degree[block.target])
                update = self.conv(x, block.edge_index, weight)
                # The first rows are the ones whose neighbours are all here.
                result: Tensor = (x + update.relu())[: block.rows_out]
                return result

        return (Residual() if layer.kind == "conv" else Linear()).to(options.dtype)
