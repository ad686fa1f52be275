"""Which nodes or links a replica of a sampled run is given in a step, worked out again.

An epoch is one permutation of the nodes to train on, drawn by numpy's default generator from the
seed and the epoch's number. It is cut into global mini-batches, of which the last has what is left;
each is cut into one part a replica and these into micro-batches, as equal as can be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gnnhpc.check.plain.order import Ids, PlainOrder
from gnnhpc.experiment.experiment import Experiment

Mask = NDArray[np.bool_]


@dataclass
class PlainShares(PlainOrder):
    """`samples` are the nodes to train on; what it gives are their places in ascending order."""

    train: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    parts: int = 1
    """Micro-batches of a replica."""

    @classmethod
    def of(cls, experiment: Experiment, train: Ids, replica: int = 0) -> PlainShares:
        """`train` are the nodes to train on, ascending."""
        assert experiment.batch_size is not None
        return cls(
            len(train),
            experiment.batch_size,
            experiment.layout.replicas,
            replica,
            experiment.seed,
            train=train,
            parts=experiment.microbatches,
        )

    @property
    def steps_per_epoch(self) -> int:
        together = self.batch_size * self.replicas
        return len(range(0, self.samples, together))

    def together(self, step: int) -> int:
        """How many they have."""
        return len(self.everyone(step))

    def everyone(self, step: int) -> Ids:
        """What all replicas have in a step."""
        return self._global(step // self.steps_per_epoch, step)

    def ids(self, step: int) -> Ids:
        return self._part(step // self.steps_per_epoch, step)

    def nodes(self, step: int) -> list[Ids]:
        """The nodes of each micro-batch of this replica, ascending."""
        return self.split(self.ids(step))

    def split(self, places: Ids) -> list[Ids]:
        """A replica's places as the nodes of its micro-batches, ascending."""
        longer = len(places) % self.parts
        size = len(places) // self.parts
        ends = np.cumsum([size + (m < longer) for m in range(self.parts)])
        return [np.sort(self.train[each]) for each in np.split(places, ends[:-1])]

    def _part(self, epoch: int, step: int) -> Ids:
        order = self._global(epoch, step)
        first = len(order) * self.replica // self.replicas
        stop = len(order) * (self.replica + 1) // self.replicas
        return order[first:stop]

    def _global(self, epoch: int, step: int) -> Ids:
        together = self.batch_size * self.replicas
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.order(epoch)
        start = step % self.steps_per_epoch * together
        return self._order[start : start + together]


def evaluated_nodes(experiment: Experiment, val: Mask, test: Mask, replica: int) -> list[Ids]:
    """Of each micro-batch of a replica, the nodes of an evaluation that is sampled, ascending.

    Nodes to validate and to test are cut into replicas, and these into micro-batches.
    """
    nodes = np.flatnonzero(val | test)
    replicas, parts = experiment.layout.replicas, experiment.microbatches
    first, stop = (len(nodes) * each // replicas for each in (replica, replica + 1))
    mine = nodes[first:stop]
    ends = [len(mine) * part // parts for part in range(parts + 1)]
    return [mine[ends[part] : ends[part + 1]] for part in range(parts)]
