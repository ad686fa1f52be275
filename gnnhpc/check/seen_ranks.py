"""What all ranks have computed in a few steps, put together replica by replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from gnnhpc.check.capture import Array, RankSeen, SeenActivation, SeenEdges, SeenTargets

TensorsOf = Callable[[RankSeen], Mapping[str, Array]]


@dataclass(frozen=True)
class SeenRanks:
    """Of each rank what it has seen, in the order of ranks."""

    ranks: Sequence[RankSeen]
    replicas: int

    @property
    def steps(self) -> int:
        return len(self.ranks[0].steps)

    @property
    def activations(self) -> list[SeenActivation]:
        return [activation for rank in self.ranks for activation in rank.activations]

    @property
    def targets(self) -> list[SeenTargets]:
        return [targets for rank in self.ranks for targets in rank.targets]

    def edges(self, step: int) -> dict[tuple[int, int], SeenEdges]:
        """What a library drew in a step, by replica and micro-batch."""
        found = (edges for rank in self.ranks for edges in rank.edges if edges.step == step)
        return {(each.replica, each.microbatch): each for each in found}

    def loss(self, step: int) -> float:
        """The mean over replicas of what was differentiated."""
        return sum(rank.steps[step].loss for rank in self.ranks) / self.replicas

    def of_replica(self, replica: int, tensors: TensorsOf) -> dict[str, Array]:
        """The tensors of all stages of one replica."""
        found: dict[str, Array] = {}
        for rank in self.ranks:
            if rank.replica == replica:
                found |= tensors(rank)
        return found

    def kinds_of(self, replica: int) -> dict[str, torch.dtype]:
        """What kind of number each of its buffers had before the first step."""
        ranks = [rank for rank in self.ranks if rank.replica == replica]
        return {name: kind for rank in ranks for name, kind in rank.kinds.items()}

    def unequal(self, tensors: TensorsOf) -> tuple[int, str] | None:
        """The first replica with other bits than replica 0, and the tensor that has them."""
        first = self.of_replica(0, tensors)
        for replica in range(1, self.replicas):
            other = self.of_replica(replica, tensors)
            for name, value in first.items():
                if not np.array_equal(value, other.get(name, np.nan), equal_nan=True):
                    return replica, name
        return None
