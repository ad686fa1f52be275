"""What a watch of the data does, of images or of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.watches.chunk_edges import ChunkCounts
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase

WatchedKind = Literal["images", "graph", "sampled", "graphs"]
Ids = npt.NDArray[np.int64]


class DataWatch(Protocol):
    """`step` counts as the records do; `number` within the present evaluation, as the data do."""

    kind: ClassVar[WatchedKind]

    @property
    def chunks(self) -> Mapping[int, ChunkCounts]:
        """What was counted of a graph's chunks, by their numbers; nothing of images."""
        ...

    @property
    def nodes_and_edges(self) -> tuple[int, int]:
        """Of the whole graph, or of all graphs, read again; zeros of images."""
        ...

    @property
    def facts(self) -> Mapping[str, int]:
        """What a result tells of the data, of what mini-batches are drawn from, read again."""
        ...

    @property
    def evaluated(self) -> bytes | None:
        """Which nodes of a whole graph this replica's evaluations were of, a bit each; None where
        a rule tells it, which is checked here."""
        ...

    def check_order(self, step: int, batch: Batch) -> None:
        """In every training step: whether its samples are those that the rule names."""
        ...

    def before(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """What the engine is about to be given."""
        ...

    def after(
        self,
        phase: Phase,
        step: int,
        number: int,
        batch: Batch,
        given: list[tuple[Inputs, Context]],
    ) -> None:
        """What the stage's forwards were given, and the labels beside it."""
        ...

    def check_cheaply(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """In steps that are not looked at: all labels, and few of the inputs."""
        ...

    def labels(self, phase: Phase, split: str, number: int, batch: Batch) -> list[Ids]:
        """Each micro-batch's labels of a split, read again; negative where there is none."""
        ...

    def labelled(self, phase: Phase, number: int) -> int:
        """Labelled samples of a step over all replicas."""
        ...
