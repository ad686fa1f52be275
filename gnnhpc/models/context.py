"""What a layer needs beside its input: which micro-batch of which step, and its piece of graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gnnhpc.graphs.chunks import GraphChunk


@dataclass
class Context:
    """One a micro-batch; `step` moves on, the rest stays."""

    microbatch: int = 0
    graph: GraphChunk | None = None
    seed: int = 0
    step: int = 0
