"""The parameters of ViG's layers, with the same names in both implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gnnhpc.models.added_gradients import AddsGradients
from gnnhpc.models.batchnorm import BatchNorm
from gnnhpc.models.protocol import BatchNormMode

if TYPE_CHECKING:
    from torch_geometric.nn import GraphConv

CHANNELS = 3
"""Channels of a pixel, and of every activation between layers."""

Grid = tuple[int, int]


class Neighbourhood(nn.Module):
    """The parameters of a GraphConv with PyG's names, without importing PyG."""

    def __init__(self, width: int, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.lin_rel = nn.Linear(width, width, dtype=dtype)
        self.lin_root = nn.Linear(width, width, bias=False, dtype=dtype)


class GrapherParameters(AddsGradients):
    """The parameters of both implementations of the Grapher; 3 -> width -> width -> 3."""

    conv: Neighbourhood | GraphConv

    def __init__(
        self, grid: Grid, width: int, *, batchnorm: BatchNormMode, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.grid = grid
        self.fc1 = nn.Linear(CHANNELS, width, dtype=dtype)
        self.norm1 = BatchNorm(width, batchnorm, dtype=dtype)
        self.conv = Neighbourhood(width, dtype=dtype)
        self.fc2 = nn.Linear(width, CHANNELS, dtype=dtype)
        self.norm2 = BatchNorm(CHANNELS, batchnorm, dtype=dtype)


class FfnParameters(AddsGradients):
    """The parameters of both implementations of the FFN; 3 -> width -> 3."""

    def __init__(self, width: int, *, batchnorm: BatchNormMode, dtype: torch.dtype) -> None:
        super().__init__()
        self.fc1 = nn.Linear(CHANNELS, width, dtype=dtype)
        self.norm1 = BatchNorm(width, batchnorm, dtype=dtype)
        self.fc2 = nn.Linear(width, CHANNELS, dtype=dtype)
        self.norm2 = BatchNorm(CHANNELS, batchnorm, dtype=dtype)
