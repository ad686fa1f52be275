"""The rank map: which process holds which stages of which replica.

A *place* is one stage of one replica. `gnnhpc.core.layout.Layout` numbers the places, replica by
replica and stage by stage. A process (a rank of torch.distributed) holds one place, or several
neighbouring stages of one replica where its engine runs them on several devices.

    dp2-pp4, 1 stage a process    0 1 2 3 | 4 5 6 7
    dp2-pp4, 4 stages a process   0 0 0 0 | 1 1 1 1
"""

from __future__ import annotations

from dataclasses import dataclass

from gnnhpc.core.layout import Layout


@dataclass(frozen=True)
class RankMap:
    """The processes of a layout; ValueError if `stages_per_process` does not divide its stages."""

    layout: Layout
    stages_per_process: int = 1

    def __post_init__(self) -> None:
        if self.stages_per_process < 1 or self.layout.stages % self.stages_per_process:
            raise ValueError(
                f"{self.stages_per_process} stages a process do not divide {self.layout}"
            )

    @property
    def processes(self) -> int:
        return self.layout.world_size // self.stages_per_process

    def process_of(self, replica: int, stage: int) -> int:
        return self.layout.rank_of(replica, stage) // self.stages_per_process

    def places_of(self, process: int) -> range:
        """The places a process holds, in the order of their stages."""
        first = process * self.stages_per_process
        return range(first, first + self.stages_per_process)

    def replica_of(self, process: int) -> int:
        return self.layout.replica_of(self.places_of(process)[0])

    def stages_of(self, process: int) -> range:
        first = self.layout.stage_of(self.places_of(process)[0])
        return range(first, first + self.stages_per_process)

    def pipeline(self, replica: int) -> list[int]:
        """The processes of one replica, first stage first."""
        per_replica = self.layout.stages // self.stages_per_process
        return list(range(replica * per_replica, (replica + 1) * per_replica))

    def peers(self, stage: int) -> list[int]:
        """The processes that hold this stage, one a replica."""
        return [self.process_of(replica, stage) for replica in range(self.layout.replicas)]
