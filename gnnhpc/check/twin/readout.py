"""The readout of graphs in plain torch: every node's row added to its graph's, one by one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.check.twin.gat import LogSoftmax
from gnnhpc.check.twin.layer import Parameters, TwinLayer, WithoutParameters, linear_values
from gnnhpc.check.twin.scene import Scene, SparseInput
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.pooling import Pooling


@dataclass(frozen=True)
class PoolingTwin(WithoutParameters):
    how: Pooling

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        assert isinstance(x, Tensor)
        assert scene.pooled is not None
        graphs = scene.graphs
        total = x.new_zeros(graphs, x.shape[1]).index_add(0, scene.pooled, x)
        if self.how == "sum":
            return total
        return total / torch.bincount(scene.pooled, minlength=graphs)[:, None].to(x.dtype)


@dataclass(frozen=True)
class LinearTwin:
    inputs: int
    outputs: int

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """In single precision, as all of them."""
        drawn = linear_values("", self.inputs, self.outputs, torch.float32)
        return {name.removeprefix("."): value.to(dtype) for name, value in drawn.items()}

    def norms(self) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor | SparseInput, p: Parameters, scene: Scene) -> Tensor:
        assert isinstance(x, Tensor)
        return x @ p["weight"].T + p["bias"]


def layer(pooling: Pooling, outline: LayerSpec) -> TwinLayer:
    match outline.kind:
        case "pooling":
            return PoolingTwin(pooling)
        case "linear":
            return LinearTwin(outline.inputs[0], outline.shape[0])
    return LogSoftmax()
