"""What a layer needs besides its input: which micro-batch of which step, and its chunk."""

from __future__ import annotations

from dataclasses import dataclass

from gnnhpc.graphs.blocks import GraphChunk


@dataclass(frozen=True)
class Context:
    """The context of one micro-batch in one step."""

    microbatch: int = 0
    """Counts from 0 within the mini-batch."""
    step: int = 0
    """Training step; dropout masks are computed from it."""
    seed: int = 0
    """The experiment's."""
    graph: GraphChunk | None = None
    """None for images."""

    @property
    def chunk(self) -> GraphChunk:
        """The chunk of a graph that a layer works on; ValueError for images."""
        if self.graph is None:
            raise ValueError("graph layers need a context with a chunk of a graph")
        return self.graph
