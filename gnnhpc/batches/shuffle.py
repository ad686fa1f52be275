"""Shuffles samples and splits them over replicas and micro-batches.

An epoch is one permutation of all samples, which follows from the seed and the epoch's number, so
every rank computes the same one without communication.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gnnhpc.batches.batch import BatchPlan

Places = NDArray[np.int64]


@functools.lru_cache(maxsize=4)
def permutation(samples: int, seed: int, epoch: int) -> Places:
    """The order of an epoch's samples, int64 [samples]."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


@dataclass(frozen=True)
class Share:
    """The nodes, links or graphs that one replica trains on in one step."""

    step: int
    epoch: int
    whole: Places
    """The places of the samples of all replicas, among those to train on."""
    places: Places
    """The places of this replica's samples."""
    seeds: tuple[Tensor, ...]
    """This replica's samples, int64 [n] ascending, one tensor a micro-batch."""

    @property
    def together(self) -> int:
        """The number of samples of all replicas."""
        return len(self.whole)


@dataclass(frozen=True)
class Shares:
    """The shares of one replica in all steps.

    Every sample comes once an epoch. The last mini-batch has the samples that are left, in parts
    that differ by one sample at most; a part may be empty. `train` int64 [n] are the samples to
    train on, ascending: nodes, or numbers of links or graphs. `batch_size` is the number of samples
    a replica.
    """

    train: Tensor
    batch_size: int
    microbatches: int
    replicas: int
    replica: int
    seed: int

    @classmethod
    def of(cls, train: Tensor, plan: BatchPlan) -> Shares:
        """The shares of this process's replica, of samples to train on."""
        experiment, mesh = plan.experiment, plan.mesh
        assert experiment.batch_size is not None
        sizes = (experiment.batch_size, experiment.microbatches)
        return cls(train, *sizes, mesh.layout.replicas, mesh.replica, experiment.seed)

    @property
    def together(self) -> int:
        """The number of samples of all replicas in a step that is not an epoch's last."""
        return self.batch_size * self.replicas

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.train) // self.together)

    @property
    def fewest(self) -> int:
        """The number of samples of an epoch's last step, of all replicas."""
        return len(self.train) - (self.steps_per_epoch - 1) * self.together

    def of_step(self, step: int) -> Share:
        epoch, number = divmod(step, self.steps_per_epoch)
        order = permutation(len(self.train), self.seed, epoch)
        whole = order[number * self.together :][: self.together]
        mine = cut_evenly(range(len(whole)), self.replicas)[self.replica]
        places = whole[mine.start : mine.stop]
        parts = np.array_split(self.train[torch.from_numpy(places)].numpy(), self.microbatches)
        seeds = tuple(torch.from_numpy(np.sort(part)) for part in parts)
        return Share(step, epoch, whole, places, seeds)


def cut_evenly(whole: range, parts: int) -> list[range]:
    """Cut a range into `parts` consecutive ones, whose lengths differ by one at most."""
    ends = [whole.start + len(whole) * part // parts for part in range(parts + 1)]
    return [range(first, stop) for first, stop in itertools.pairwise(ends)]
