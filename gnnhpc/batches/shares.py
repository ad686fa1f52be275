"""A replica's share of each mini-batch: which nodes or links of a graph it trains on in a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.order import Places, share, steps_per_epoch


@dataclass(frozen=True)
class Share:
    """Of one replica in one step."""

    step: int
    epoch: int
    whole: Places
    """Of the step's nodes over all replicas, among those to train on."""
    places: Places
    """Of this replica's."""
    seeds: tuple[Tensor, ...]
    """Its nodes, int64 [n] ascending, one tensor a micro-batch."""

    @property
    def together(self) -> int:
        """Nodes of the step over all replicas."""
        return len(self.whole)


@dataclass(frozen=True)
class Shares:
    """`train` int64 [n] are the nodes to train on, or the numbers of links, ascending;
    `batch_size` is a replica's."""

    train: Tensor
    batch_size: int
    microbatches: int
    replicas: int
    replica: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return steps_per_epoch(len(self.train), self.batch_size * self.replicas)

    @property
    def fewest(self) -> int:
        """Nodes of an epoch's last step, over all replicas."""
        together = self.batch_size * self.replicas
        return len(self.train) - (self.steps_per_epoch - 1) * together

    def of_step(self, step: int) -> Share:
        epoch, whole, places = share(
            len(self.train), self.batch_size, self.replicas, self.replica, self.seed, step
        )
        parts = np.array_split(self.train[torch.from_numpy(places)].numpy(), self.microbatches)
        seeds = tuple(torch.from_numpy(np.sort(part)) for part in parts)
        return Share(step, epoch, whole, places, seeds)
