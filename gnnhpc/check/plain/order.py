"""The documented order of samples, worked out again.

An epoch is one permutation of all samples, drawn by numpy's default generator from the seed and
the epoch's number. It is cut into global mini-batches, each of them into one part a replica; what
is left after the last whole global mini-batch is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]


@dataclass
class PlainOrder:
    """Which samples of a split a replica is given in which step."""

    samples: int
    batch_size: int
    replicas: int
    replica: int
    seed: int
    _epoch: int = -1
    _order: Ids = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def steps_per_epoch(self) -> int:
        return self.samples // (self.batch_size * self.replicas)

    def ids(self, step: int) -> Ids:
        """Sample numbers int64 [batch_size] of a step."""
        epoch = step // self.steps_per_epoch
        number = step - epoch * self.steps_per_epoch
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.order(epoch)
        start = (number * self.replicas + self.replica) * self.batch_size
        return self._order[start : start + self.batch_size]

    def order(self, epoch: int) -> Ids:
        """All samples in the order of an epoch."""
        return np.random.default_rng([self.seed, epoch]).permutation(self.samples)

    def explain(self, step: int, found: Ids) -> str:
        """What a step's samples are, where they are not those of the rule."""
        if len(np.unique(found)) < len(found):
            return "a sample comes twice in one mini-batch"
        if len(found) and (found.min() < 0 or found.max() >= self.samples):
            return f"sample {found.max()} is none of the split's {self.samples}"
        if np.array_equal(np.sort(found), np.sort(self.ids(step))):
            return "the samples of the mini-batch are in another order"
        for ids, what in self._mistakes(step):
            if np.array_equal(found, ids):
                return what
        return "the samples are not those of the epoch's permutation"

    def _mistakes(self, step: int) -> Iterator[tuple[Ids, str]]:
        """What the samples of a step would be by likely mistakes."""
        epoch = step // self.steps_per_epoch
        for other in (epoch - 1, 0):
            if 0 <= other < epoch:
                words = f"epoch {epoch} has the order of epoch {other}: never shuffled again"
                yield self._part(other, step), words
        if step:
            yield self.ids(step - 1), "the samples are those of the step before"
        for replica in set(range(self.replicas)) - {self.replica}:
            ids = replace(self, replica=replica).ids(step)
            yield ids, f"replica {self.replica} has the samples of replica {replica}"

    def _part(self, epoch: int, step: int) -> Ids:
        """What this step would take of another epoch's order."""
        number = step % self.steps_per_epoch
        start = (number * self.replicas + self.replica) * self.batch_size
        return self.order(epoch)[start : start + self.batch_size]
