"""What a layer needs besides its input: the micro-batch, the step, and the chunk of a graph."""

from __future__ import annotations

from dataclasses import dataclass

from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.kernels.dropout_mask import Masks


@dataclass(frozen=True)
class Context:
    """The context of one micro-batch in one step."""

    microbatch: int = 0
    """The micro-batch's number within the mini-batch, from 0."""
    step: int = 0
    """The training step; dropout masks are computed from it."""
    seed: int = 0
    """The experiment's seed."""
    graph: GraphChunk | None = None
    """The chunk of a graph; None for images."""

    masks: Masks | None = None
    """Where dropout masks come from in a step that is captured and replayed, and in a reference."""

    @property
    def chunk(self) -> GraphChunk:
        """The chunk of a graph that a layer works on; raises ValueError for images."""
        if self.graph is None:
            raise ValueError("graph layers need a context with a chunk of a graph")
        return self.graph
