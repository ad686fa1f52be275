"""Watches that replicas hold one model: when they begin, at checkpoints and at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnnhpc.check.watches.state_hashes import Hashes, differing, hashes_of, named_in_words
from gnnhpc.core.layout import Layout
from gnnhpc.engines.stage import Stage


@dataclass
class ReplicaWatch:
    """Hashes of this rank's parameters; buffers are each replica's own until an evaluation."""

    stage: Stage
    hashes: dict[str, Hashes] = field(default_factory=dict)
    """By the moment they were taken at."""

    def take(self, moment: str) -> Hashes:
        self.hashes[moment] = hashes_of(self.stage.named_parameters())
        return self.hashes[moment]


def unlike_replicas(by_rank: list[Hashes], layout: Layout) -> str | None:
    """Which parameters differ between which replicas, in words; none where all are one.

    `by_rank` are hashes of one moment.
    """
    for stage in range(layout.stages):
        first, *others = layout.replica_ranks(stage)
        for rank in others:
            names = differing(by_rank[first], by_rank[rank])
            if names:
                return (
                    f"{named_in_words(names)} of stage {stage} differ between replicas 0 and "
                    f"{layout.replica_of(rank)}"
                )
    return None
