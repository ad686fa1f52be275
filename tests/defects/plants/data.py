"""What is read: features, labels, splits, edges, files."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch

from gnnhpc.data import images as image_data
from gnnhpc.data import load_graph as graph_data
from gnnhpc.data.images import Images
from tests.defects import cells
from tests.defects.defect import around, planted

defect = functools.partial(planted, kind="data as read", mechanism="data-digests")


def change_graph(change: Any) -> None:
    around(graph_data, "load_graph", lambda original, *args: change(original(*args)))


@defect(
    "rows and columns of images exchanged",
    cell=cells.VIG,
    mechanism="engine-parity",
    words="inputs: train step 0",
)
def transposed() -> None:
    def take(original: Any, *args: Any) -> Any:
        return np.ascontiguousarray(original(*args).transpose(0, 1, 3, 2))

    around(Images, "take", take)


@defect("labels off by one", cell=cells.VIG, words="train labels differ")
def off_by_one() -> None:
    def shifted(original: Any, *args: Any) -> Images:
        images: Images = original(*args)
        return dataclasses.replace(images, labels=(images.labels + 1) % images.classes)

    around(image_data, "load_images", shifted)


@defect("validation nodes in training", cell=cells.GAT, words="train mask differ")
def leaked() -> None:
    def together(graph: Any) -> Any:
        masks = graph.masks | {"train": graph.masks["train"] | graph.masks["val"]}
        return dataclasses.replace(graph, masks=masks)

    change_graph(together)


@defect("one edge in fifty lost in reading", cell=cells.GAT, words="edge sources differ")
def lost_edges() -> None:
    def fewer(graph: Any) -> Any:
        keep = torch.arange(graph.edges.shape[1]) % 50 != 0
        return dataclasses.replace(graph, edges=graph.edges[:, keep])

    change_graph(fewer)
