"""GATv2's attention in plain torch: every edge's score, softmax and message one by one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.check.twin.gat import SLOPE, kept, softmax
from gnnhpc.check.twin.graph_sums import glorot, graph_of, magnitude, product
from gnnhpc.check.twin.layer import Parameters, linear_values
from gnnhpc.check.twin.scene import Kink, Scene, SparseInput


@dataclass(frozen=True)
class AttentionV2:
    """Brody et al. 2022, equation 7, as PyG's GATv2Conv computes it."""

    name: str
    inputs: int
    heads: int
    channels: int
    average: bool
    dropout: float

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Glorot's, in single precision, after what torch draws for two linear layers."""
        width = self.heads * self.channels
        values = {}
        for name in ("lin_l", "lin_r"):
            linear_values(name, self.inputs, width, torch.float32)
        for name in ("lin_l", "lin_r"):
            values[f"{name}.weight"] = glorot(width, self.inputs).to(dtype)
            values[f"{name}.bias"] = torch.zeros(width, dtype=dtype)
        values["att"] = glorot(1, self.heads, self.channels).to(dtype)
        values["bias"] = torch.zeros(self.channels if self.average else width, dtype=dtype)
        return values

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        graph = graph_of(scene)
        source, target = self._ends(x, p)
        both = source[graph.source] + target[graph.target]
        activated = torch.where(both > 0, both, SLOPE * both)
        if scene.training:
            with torch.no_grad():
                sizes = {name: value.abs() for name, value in p.items()}
                source_size, target_size = self._ends(magnitude(x), sizes)
                reach = source_size[graph.source] + target_size[graph.target]
            kink = Kink(self.name, both, reach, SLOPE)
            kink.keep_arriving(activated)
            scene.kinks.append(kink)
        coefficients = softmax((activated * p["att"]).sum(-1), graph)
        if scene.training and self.dropout:
            numbers = graph.number[:, None] * self.heads + torch.arange(self.heads)
            coefficients = coefficients * kept(
                scene, self.name, self.dropout, numbers, source.dtype
            )
        messages = coefficients[..., None] * source[graph.source]
        out = torch.zeros_like(source).index_add(0, graph.target, messages)
        return (out.mean(1) if self.average else out.flatten(1)) + p["bias"]

    def _ends(self, x: Tensor | SparseInput, p: Parameters) -> tuple[Tensor, Tensor]:
        """W_l x and W_r x with their biases, [nodes, heads, channels] each."""
        source, target = (
            (product(x, p[f"{name}.weight"].T) + p[f"{name}.bias"]).view(
                -1, self.heads, self.channels
            )
            for name in ("lin_l", "lin_r")
        )
        return source, target
