"""What the watches of one rank have seen over a run, small enough to send to rank 0."""

from __future__ import annotations

from dataclasses import dataclass

from gnnhpc.check.watches.chunk_edges import ChunkCounts
from gnnhpc.check.watches.evaluation_watch import Evaluated
from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.gradient_watch import SharedGradient
from gnnhpc.check.watches.plain_tally import PlainTallies
from gnnhpc.check.watches.stage_traffic import Crossed
from gnnhpc.check.watches.state_hashes import Hashes


@dataclass(frozen=True)
class Watched:
    """Findings, and what only a comparison of ranks can judge."""

    kind: str
    """Of the data: images, graph, graphs, or sampled of a graph's mini-batches."""
    own_model: bool
    """Whether the layers are a user's, who may have put a module into another mode."""
    findings: Findings
    parameters: dict[str, Hashes]
    """Hashes by the moment they were taken at."""
    evaluated: list[Evaluated]
    crossed: list[Crossed]
    """What crossed the stage's cuts in each step that was looked at."""
    shared: list[SharedGradient]
    dtype: str
    chunks: dict[int, ChunkCounts]
    """Of a graph in chunks, those of this rank, by their numbers among all."""
    nodes_and_edges: tuple[int, int]
    """Of the whole graph, read again; zeros of images."""
    facts: dict[str, int]
    """What the result tells of what mini-batches are drawn from, read again."""
    evaluated_nodes: bytes | None
    """Which of a whole graph its replica evaluated, a bit each; None where a rule tells it."""
    tallies: list[PlainTallies]
    """Of every step, on stages with the loss."""
