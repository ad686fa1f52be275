"""The documented order of samples, computed independently of the loaders.

An epoch is one permutation of all samples, from numpy's default generator seeded by the run's seed
and the epoch's number. It is cut into global mini-batches, each of them into one share a replica,
and each share into micro-batches.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnhpc.experiment.experiment import Experiment

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SampleSchedule:
    """Which of `samples` samples each replica trains on in each step."""

    samples: int
    batch_size: int
    """Samples of one replica in a step."""
    replicas: int
    seed: int
    drop_last: bool
    """Whether an epoch leaves out the samples after the last whole global mini-batch, as it does
    of images. Otherwise the last global mini-batch of an epoch has what is left."""

    @classmethod
    def of(cls, experiment: Experiment, samples: int) -> SampleSchedule:
        """The schedule of an experiment that trains on `samples` samples in mini-batches."""
        assert experiment.batch_size is not None
        return cls(
            samples,
            experiment.batch_size,
            experiment.layout.replicas,
            experiment.seed,
            drop_last=experiment.data.facts().kind == "images",
        )

    @property
    def steps_per_epoch(self) -> int:
        together = self.batch_size * self.replicas
        return self.samples // together if self.drop_last else -(-self.samples // together)

    def epoch(self, step: int) -> int:
        return step // self.steps_per_epoch

    def global_batch(self, step: int) -> Ids:
        """The samples of all replicas in a step, int64 [n], in the order of the permutation."""
        together = self.batch_size * self.replicas
        start = step % self.steps_per_epoch * together
        return permutation(self.samples, self.seed, self.epoch(step))[start : start + together]

    def share(self, step: int, replica: int) -> Ids:
        """The samples of one replica in a step, int64 [n]; shares differ by one sample at most."""
        return part_of(self.global_batch(step), replica, self.replicas)


@functools.lru_cache(maxsize=4)
def permutation(samples: int, seed: int, epoch: int) -> Ids:
    """The samples 0 to samples - 1 in the order of an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def split_nodes(nodes: Ids, microbatches: int) -> list[Ids]:
    """Nodes of a replica's share as its micro-batches, each ascending.

    Where the micro-batches cannot be equally large, the first ones have one node more.
    """
    return [np.sort(part) for part in np.array_split(nodes, microbatches)]


def part_of(items: Ids, place: int, parts: int) -> Ids:
    """One of `parts` consecutive parts, cut at len * place // parts."""
    first, stop = (len(items) * each // parts for each in (place, place + 1))
    return items[first:stop]
