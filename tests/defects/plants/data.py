"""What is read, and what mini-batches have of it: samples, order, labels."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch

from gnnhpc.batches import image_batches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.shuffle import Share, Shares
from gnnhpc.data import cifar10_images as image_data
from gnnhpc.data import load_graph as graph_data
from gnnhpc.data.cifar10_images import Images
from gnnhpc.kernels.sample_neighbors import FRESH
from tests.defects import cells
from tests.defects.defect import around, planted, rank

of_data = functools.partial(planted, kind="data as read", cell=cells.VIG, mechanism="data-digests")
LOADED = (graph_data, "load_graph")


@of_data(
    "rows and columns of images exchanged",
    mechanism="engine-parity",
    words="inputs: train step 0",
    at=(Images, "take"),
)
def transposed(original: Any, *args: Any) -> Any:
    return np.ascontiguousarray(original(*args).transpose(0, 1, 3, 2))


@of_data("labels off by one", words="train labels differ", at=(image_data, "load_images"))
def off_by_one(original: Any, *args: Any) -> Images:
    images: Images = original(*args)
    return dataclasses.replace(images, labels=(images.labels + 1) % images.classes)


@of_data("validation nodes in training", cell=cells.GAT, words="train mask differ", at=LOADED)
def leaked(original: Any, *args: Any) -> Any:
    graph = original(*args)
    masks = graph.masks | {"train": graph.masks["train"] | graph.masks["val"]}
    return dataclasses.replace(graph, masks=masks)


@of_data(
    "one edge in fifty lost in reading", cell=cells.GAT, words="edge sources differ", at=LOADED
)
def lost_edges(original: Any, *args: Any) -> Any:
    graph = original(*args)
    keep = torch.arange(graph.edges.shape[1]) % 50 != 0
    return dataclasses.replace(graph, edges=graph.edges[:, keep])


of_batches = functools.partial(planted, kind="mini-batches")
parity = functools.partial(
    of_batches, mechanism="engine-parity", words="train targets are not those of its inputs"
)
order = functools.partial(of_batches, mechanism="data-digests", words="the samples are not those")


@parity("labels rolled in the loader", cell=cells.VIG, at=(ImageBatches, "_load"))
def rolled(original: Any, *args: Any) -> Any:
    loaded = original(*args)
    for labels in (x for each in loaded.microbatches for x in each.targets.values()):
        labels.numpy()[:] = np.roll(labels.numpy(), 1)
    return loaded


@parity("labels of the next mini-batch", cell=cells.VIG, at=(ImageBatches, "_load"))
def next_labels(original: Any, batches: ImageBatches, phase: Any, step: int, memory: Any) -> Any:
    loaded, later = (
        original(batches, phase, step, memory),
        original(batches, phase, step + 1, FRESH),
    )
    microbatches = tuple(
        dataclasses.replace(each, targets=other.targets)
        for each, other in zip(loaded.microbatches, later.microbatches, strict=True)
    )
    return dataclasses.replace(loaded, microbatches=microbatches)


@order("every epoch in the order of the first", cell=cells.VIG, words="epoch")
def never_shuffled_again() -> None:
    around(
        image_batches,
        "permutation",
        lambda original, samples, seed, epoch: original(samples, seed, 0),
    )


@order(
    "every replica trains on all samples of a step",
    cell=cells.GRAPHS_REPLICAS,
    at=(Shares, "of_step"),
)
def not_sharded(original: Any, shares: Shares, step: int) -> Share:
    share: Share = original(dataclasses.replace(shares, replica=0), step)
    return share


@order(
    "shards of replicas that overlap", cell=cells.VIG_REPLICAS, at=(image_batches, "epoch_indices")
)
def overlapping(original: Any, samples: int, size: int, replicas: int, *rest: Any) -> Any:
    """The second replica's shard begins one sample early."""
    epoch, indices = original(samples, size, replicas, *rest)
    if rank() == 1:
        _, before = original(samples, size, replicas, 0, *rest[1:])
        indices = np.concatenate((before[-1:], indices[:-1]))
    return epoch, indices


@order("a mini-batch without its last graph", cell=cells.GRAPHS, at=(Shares, "of_step"))
def last_graph_left_out(original: Any, shares: Shares, step: int) -> Share:
    share: Share = original(shares, step)
    seeds = (*share.seeds[:-1], share.seeds[-1][:-1])
    return dataclasses.replace(share, places=share.places[:-1], seeds=seeds)
