"""Training steps of ViG: this project's layers, PyG's in them, and the form of ViG's study.

The study keeps all images' nodes in one `[nodes, 3]` and calls PyG's GraphConv on one graph. Its
form here has the same layers and sizes as `gnnhpc.models.vig`, but torch's own BatchNorm and no
view of single images before the readout. The edges of the whole batch are ready before a step, as
they are from PyG's loader: as `edge_index`, or as torch-sparse's `adj_t`, with which GraphConv
multiplies by a sparse matrix and stores no message for an edge.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.nn import GraphConv, global_add_pool

from gnnhpc.data.data_settings import SyntheticCifar10
from gnnhpc.distributed.allocator import map_large_blocks_separately
from gnnhpc.models.model import BuildOptions, Context
from gnnhpc.models.vig.model import Vig
from gnnhpc.models.vig.reference import grid_edges

IMAGE_SIZE, CLASSES = 32, 10
EdgeForm = Literal["edge_index", "adj_t"]
Form = Literal["fused", "reference", "edge_index", "adj_t"]
"""This project's layers, its layers of PyG, and the study's form with edges in two forms."""


def contestant(form: Form, images: int, device: str = "cpu") -> Callable[[], float]:
    """Seconds of a training step: zero gradients, forward, loss, backward, Adam."""
    place = torch.device(device)
    if form == "fused":
        map_large_blocks_separately()
    pixels, labels = made_up(images, place)
    if form == "fused" or form == "reference":  # noqa: PLR1714 - mypy narrows by ==
        model: nn.Module = our_layers(Vig.model_validate({"implementation": form})).to(place)

        def logits() -> Tensor:
            return through(model, pixels)

    else:
        model = FlatVig(Vig(), CLASSES).to(place)
        edges = batch_edges(form, IMAGE_SIZE, images, place)
        nodes = pixels.reshape(-1, 3)
        image = torch.arange(images, device=place).repeat_interleave(IMAGE_SIZE**2)

        def logits() -> Tensor:
            scores: Tensor = model(nodes, edges, image)
            return scores

    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def turn() -> float:
        synchronize(place)
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        functional.cross_entropy(logits(), labels).backward()
        optimizer.step()
        synchronize(place)
        return time.perf_counter() - began

    return turn


def our_layers(
    sizes: Vig, dtype: torch.dtype = torch.float32, side: int = IMAGE_SIZE
) -> nn.ModuleList:
    """The layers of this project for images of `side` by `side` pixels."""
    specs = sizes.outline(SyntheticCifar10(image_size=side).facts())
    return nn.ModuleList(sizes.build(spec, BuildOptions(dtype)) for spec in specs)


def through(layers: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(layers, nn.ModuleList)
    for layer in layers:
        x = layer(x, Context())
    return x


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def made_up(images: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixels [images, nodes, 3] and labels, the same for every form."""
    random = torch.Generator().manual_seed(0)
    pixels = torch.rand((images, IMAGE_SIZE**2, 3), generator=random).to(device)
    return pixels, torch.randint(0, CLASSES, (images,), generator=random).to(device)


class FlatBlock(nn.Module):
    """A Grapher, then an FFN, each added to its input."""

    def __init__(self, sizes: Vig) -> None:
        super().__init__()
        grapher, ffn = sizes.grapher_width, sizes.ffn_width
        self.grapher_in = nn.Sequential(nn.Linear(3, grapher), nn.BatchNorm1d(grapher))
        self.conv = GraphConv(grapher, grapher, aggr="add")
        self.grapher_out = nn.Sequential(nn.Linear(grapher, 3), nn.BatchNorm1d(3))
        self.ffn = nn.Sequential(
            *(nn.Linear(3, ffn), nn.BatchNorm1d(ffn), nn.GELU()),
            *(nn.Linear(ffn, 3), nn.BatchNorm1d(3)),
        )

    def forward(self, x: Tensor, edges: Any) -> Tensor:
        x = x + self.grapher_out(functional.gelu(self.conv(self.grapher_in(x), edges)))
        out: Tensor = x + self.ffn(x)
        return out


class FlatVig(nn.Module):
    """Pixels `[images * nodes, 3]` to logits `[images, classes]`."""

    def __init__(self, sizes: Vig, classes: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(FlatBlock(sizes) for _ in range(sizes.blocks))
        self.readout = nn.Sequential(
            *(nn.Linear(3, sizes.readout_width), nn.GELU()),
            nn.Linear(sizes.readout_width, classes),
        )

    def forward(self, x: Tensor, edges: Any, image: Tensor) -> Tensor:
        """`image` int64 [nodes] is the image of each node."""
        for block in self.blocks:
            x = block(x, edges)
        logits: Tensor = self.readout(global_add_pool(x, image))
        return logits


def batch_edges(form: EdgeForm, side: int, images: int, device: torch.device) -> Any:
    """The edges of a batch of square images in one of the forms that PyG's layers take.

    Raises ImportError where torch-sparse is not installed.
    """
    edges = grid_edges((side, side), images, device)
    return edges if form == "edge_index" else adjacency(edges, images * side**2)


def adjacency(edges: Tensor, nodes: int) -> Any:
    """The edges as torch-sparse's transposed adjacency."""
    from torch_sparse import SparseTensor

    source, target = edges
    return SparseTensor(row=target, col=source, sparse_sizes=(nodes, nodes)).fill_cache_()
