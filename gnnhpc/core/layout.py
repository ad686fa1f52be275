"""A layout: how many replicas of how many stages, and which rank is which."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gnnhpc.core.errors import InputError

_NAME = re.compile(
    r"(?=.)(?:dp(?P<replicas>[1-9]\d*))?(?:(?:^|(?<=\d)-)pp(?P<stages>[1-9]\d*))?", re.ASCII
)
ALLOWED = "seq, pp<S>, dp<R> or dp<R>-pp<S>, such as pp2, pp4, dp2-pp2"


@dataclass(frozen=True, order=True)
class Layout:
    """R replicas of an S-stage pipeline; the stages of one replica are neighbouring ranks."""

    replicas: int = 1
    stages: int = 1

    @classmethod
    def parse(cls, name: str) -> Layout:
        """Read `seq`, `pp2`, `dp2`, `dp2-pp4`; raises InputError naming the choices."""
        if name == "seq":
            return cls()
        match = _NAME.fullmatch(name)
        if match is None:
            raise InputError("layout", None, repr(name), ALLOWED)
        return cls(int(match["replicas"] or 1), int(match["stages"] or 1))

    def __str__(self) -> str:
        parts = []
        if self.replicas > 1:
            parts.append(f"dp{self.replicas}")
        if self.stages > 1:
            parts.append(f"pp{self.stages}")
        return "-".join(parts) or "seq"

    @property
    def world_size(self) -> int:
        return self.replicas * self.stages

    def replica_of(self, rank: int) -> int:
        return rank // self.stages

    def stage_of(self, rank: int) -> int:
        return rank % self.stages

    def rank_of(self, replica: int, stage: int) -> int:
        return replica * self.stages + stage

    def pipeline_ranks(self, replica: int) -> list[int]:
        """The ranks of one replica, first stage to last."""
        return [self.rank_of(replica, stage) for stage in range(self.stages)]

    def replica_ranks(self, stage: int) -> list[int]:
        """The ranks that hold copies of one stage, one a replica."""
        return [self.rank_of(replica, stage) for replica in range(self.replicas)]


def processes_of(layout: Layout, engine: str) -> Layout:
    """How the processes of an engine are laid out: those of torchgpipe hold all stages each."""
    return Layout(layout.replicas, 1) if engine == "torchgpipe" else layout
