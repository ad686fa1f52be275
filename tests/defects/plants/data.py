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


@of_data(mechanism="engine-parity", words="inputs: train step 0", at=(Images, "take"))
def rows_and_columns_of_images_exchanged(original: Any, *args: Any) -> Any:
    return np.ascontiguousarray(original(*args).transpose(0, 1, 3, 2))


@of_data(words="train labels differ", at=(image_data, "load_images"))
def labels_off_by_one(original: Any, *args: Any) -> Images:
    images: Images = original(*args)
    return dataclasses.replace(images, labels=(images.labels + 1) % images.classes)


@of_data(cell=cells.GAT, words="train mask differ", at=LOADED)
def validation_nodes_in_training(original: Any, *args: Any) -> Any:
    graph = original(*args)
    masks = graph.masks | {"train": graph.masks["train"] | graph.masks["val"]}
    return dataclasses.replace(graph, masks=masks)


@of_data(cell=cells.GAT, words="edge sources differ", at=LOADED)
def one_edge_in_fifty_lost_in_reading(original: Any, *args: Any) -> Any:
    graph = original(*args)
    keep = torch.arange(graph.edges.shape[1]) % 50 != 0
    return dataclasses.replace(graph, edges=graph.edges[:, keep])


of_batches = functools.partial(planted, kind="mini-batches")
parity = functools.partial(
    of_batches, mechanism="engine-parity", words="train targets are not those of its inputs"
)
order = functools.partial(of_batches, mechanism="data-digests", words="the samples are not those")


@parity(cell=cells.VIG, at=(ImageBatches, "_load"))
def labels_rolled_in_the_loader(original: Any, *args: Any) -> Any:
    loaded = original(*args)
    for labels in (x for each in loaded.microbatches for x in each.targets.values()):
        labels.numpy()[:] = np.roll(labels.numpy(), 1)
    return loaded


@parity(cell=cells.VIG, at=(ImageBatches, "_load"))
def labels_of_the_next_mini_batch(
    original: Any, batches: ImageBatches, phase: Any, step: int, memory: Any
) -> Any:
    loaded, later = (
        original(batches, phase, step, memory),
        original(batches, phase, step + 1, FRESH),
    )
    microbatches = tuple(
        dataclasses.replace(each, targets=other.targets)
        for each, other in zip(loaded.microbatches, later.microbatches, strict=True)
    )
    return dataclasses.replace(loaded, microbatches=microbatches)


@order(cell=cells.VIG, words="epoch")
def every_epoch_in_the_order_of_the_first() -> None:
    around(
        image_batches,
        "permutation",
        lambda original, samples, seed, epoch: original(samples, seed, 0),
    )


@order(cell=cells.GRAPHS_REPLICAS, at=(Shares, "of_step"))
def every_replica_trains_on_all_samples(original: Any, shares: Shares, step: int) -> Share:
    share: Share = original(dataclasses.replace(shares, replica=0), step)
    return share


@order(cell=cells.VIG_REPLICAS, at=(image_batches, "epoch_indices"))
def shards_of_replicas_that_overlap(
    original: Any, samples: int, size: int, replicas: int, *rest: Any
) -> Any:
    """The second replica's shard begins one sample early."""
    epoch, indices = original(samples, size, replicas, *rest)
    if rank() == 1:
        _, before = original(samples, size, replicas, 0, *rest[1:])
        indices = np.concatenate((before[-1:], indices[:-1]))
    return epoch, indices


@order(cell=cells.GRAPHS, at=(Shares, "of_step"))
def a_mini_batch_without_its_last_graph(original: Any, shares: Shares, step: int) -> Share:
    share: Share = original(shares, step)
    seeds = (*share.seeds[:-1], share.seeds[-1][:-1])
    return dataclasses.replace(share, places=share.places[:-1], seeds=seeds)
