"""Mini-batches: which samples, in which order, with which labels."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from gnnhpc.batches import image_batches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.shuffle import Share, Shares
from gnnhpc.kernels.sample_neighbors import FRESH
from tests.defects import cells
from tests.defects.defect import around, planted, rank

defect = functools.partial(planted, kind="mini-batches")
parity = functools.partial(
    defect, mechanism="engine-parity", words="train targets are not those of its inputs"
)
order = functools.partial(defect, mechanism="data-digests", words="the samples are not those")


@parity("labels rolled in the loader", cell=cells.VIG)
def rolled() -> None:
    def load(original: Any, *args: Any) -> Any:
        loaded = original(*args)
        loaded.labels.numpy()[:] = np.roll(loaded.labels.numpy(), 1)
        return loaded

    around(ImageBatches, "load", load)


@parity("labels of the next mini-batch", cell=cells.VIG)
def next_labels() -> None:
    def load(original: Any, batches: ImageBatches, phase: Any, step: int, memory: Any) -> Any:
        loaded = original(batches, phase, step, memory)
        loaded.labels.numpy()[:] = original(batches, phase, step + 1, FRESH).labels.numpy()
        return loaded

    around(ImageBatches, "load", load)


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
)
def not_sharded() -> None:
    def whole(original: Any, shares: Shares, step: int) -> Share:
        share: Share = original(dataclasses.replace(shares, replica=0), step)
        return share

    around(Shares, "of_step", whole)


@order("shards of replicas that overlap", cell=cells.VIG_REPLICAS)
def overlapping() -> None:
    """The second replica's shard begins one sample early."""

    def one_early(original: Any, samples: int, size: int, replicas: int, *rest: Any) -> Any:
        epoch, indices = original(samples, size, replicas, *rest)
        if rank() == 1:
            _, before = original(samples, size, replicas, 0, *rest[1:])
            indices = np.concatenate((before[-1:], indices[:-1]))
        return epoch, indices

    around(image_batches, "epoch_indices", one_early)


@order("a mini-batch without its last graph", cell=cells.GRAPHS)
def last_graph_left_out() -> None:
    def shorter(original: Any, shares: Shares, step: int) -> Share:
        share: Share = original(shares, step)
        seeds = (*share.seeds[:-1], share.seeds[-1][:-1])
        return dataclasses.replace(share, places=share.places[:-1], seeds=seeds)

    around(Shares, "of_step", shorter)
