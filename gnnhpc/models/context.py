"""What a layer needs beside its input: which micro-batch of which step, and its piece of graph."""

from __future__ import annotations

from dataclasses import dataclass

from gnnhpc.graphs.blocks import GraphChunk


@dataclass(frozen=True)
class Context:
    """Made for one micro-batch of one step."""

    microbatch: int = 0
    """Counts from 0 within the mini-batch."""
    step: int = 0
    """Training step; the mask of a dropout follows from it."""
    seed: int = 0
    """The experiment's."""
    graph: GraphChunk | None = None
    """None for images."""

    @property
    def chunk(self) -> GraphChunk:
        """The piece of graph that a graph layer works on; ValueError where there is none."""
        if self.graph is None:
            raise ValueError("graph layers need a context with a piece of graph")
        return self.graph
