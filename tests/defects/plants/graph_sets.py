"""Many small graphs: which are in a mini-batch, what belongs to each, and what is evaluated."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.batches.graph_set_batches import GraphSetBatches
from gnnhpc.batches.shares import Share, Shares
from gnnhpc.data import load_graph_sets
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.disjoint_union import DisjointUnions
from gnnhpc.graphs.graph_set import GraphSet
from gnnhpc.models.convolutions.activations import ReluDropout
from gnnhpc.models.pooling.fused import Pooling
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, rank

KIND = "many small graphs"
defect = functools.partial(planted, kind=KIND, setting=settings.GRAPHS)


def changed_unions(change: Callable[[DisjointUnions, GraphChunk], GraphChunk]) -> None:
    """Change every union after it has been made."""

    def other(true: Any, unions: DisjointUnions, *arguments: Any) -> GraphChunk:
        return change(unions, true(unions, *arguments))

    around(DisjointUnions, "of", other)


def changed_shares(change: Callable[[Shares, Share], Share]) -> None:
    def other(true: Any, shares: Shares, step: int) -> Share:
        return change(shares, true(shares, step))

    around(Shares, "of_step", other)


def with_block(chunk: GraphChunk, **changes: Any) -> GraphChunk:
    """Another block of edges in every layer, whose order by source is found anew."""
    block = dataclasses.replace(chunk.blocks[0], by_source=None, **changes)  # type: ignore[call-arg]
    return dataclasses.replace(chunk, blocks=(block,) * len(chunk.blocks))


@defect("edges that point into the next graph")
def next_graph() -> None:
    """Numbers of nodes that are moved by one graph too many."""

    def moved(unions: DisjointUnions, chunk: GraphChunk) -> GraphChunk:
        block, pooling = chunk.blocks[0], chunk.pooling_block
        graph = pooling.target[block.source]
        further = (graph + 1) % pooling.rows_out
        within = block.source - pooling.indptr[graph]
        last = pooling.indptr.diff()[further] - 1
        source = pooling.indptr[further] + torch.minimum(within, last)
        loops = block.source == block.target
        return with_block(chunk, source=torch.where(loops, block.source, source))

    changed_unions(moved)


@defect("the edges of a mini-batch's last graph left out")
def last_graph_without_edges() -> None:
    def cut(unions: DisjointUnions, chunk: GraphChunk) -> GraphChunk:
        block, pooling = chunk.blocks[0], chunk.pooling_block
        if not pooling.rows_out:
            return chunk
        own = block.target < pooling.indptr[-2]
        kept = own | (block.source == block.target)
        counts = torch.bincount(block.target[kept], minlength=block.rows_out)
        indptr = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
        parts = {name: getattr(block, name)[kept] for name in ("source", "target", "edge")}
        return with_block(chunk, indptr=indptr, **parts)

    changed_unions(cut)


@defect("a mean over nodes divided by the mean size of the graphs")
def divided_by_mean_size() -> None:
    def divided(true: Any, layer: Pooling, x: Tensor, context: Any) -> Tensor:
        counts = context.chunk.pooling_block.indptr.diff().to(x.dtype)
        pooled: Tensor = true(layer, x, context) * (counts / counts.mean())[:, None]
        return pooled

    around(Pooling, "forward", divided)


@defect("nodes pooled to the graph beside their own")
def pooled_beside() -> None:
    def rolled(unions: DisjointUnions, chunk: GraphChunk) -> GraphChunk:
        pooling = chunk.pooling_block
        starts = pooling.indptr.clone()
        # Each graph but the last takes the first node of the next one.
        starts[1:-1] += 1
        target = torch.repeat_interleave(torch.arange(pooling.rows_out), starts.diff())
        other = dataclasses.replace(pooling, indptr=starts, target=target)
        return dataclasses.replace(chunk, pooling=other)

    changed_unions(rolled)


@defect("the labels of the graphs beside")
def labels_beside() -> None:
    def rolled(true: Any, graphs: GraphSet, numbers: Tensor, splits: Any) -> dict[str, Tensor]:
        found = true(graphs, numbers, splits)
        return {split: labels.roll(1) for split, labels in found.items()}

    around(GraphSet, "targets", rolled)


@defect("the features of the nodes of another graph")
def features_beside() -> None:
    def other(true: Any, config: Any, arrays: Any, width: int) -> Tensor:
        features: Tensor = true(config, arrays, width).to_dense().roll(1, 0)
        return features

    around(load_graph_sets, "_features", other)


@defect("a mini-batch without its last graph")
def last_graph_left_out() -> None:
    def shorter(shares: Shares, share: Share) -> Share:
        seeds = (*share.seeds[:-1], share.seeds[-1][:-1])
        return dataclasses.replace(share, places=share.places[:-1], seeds=seeds)

    changed_shares(shorter)


@defect("every replica trains on all graphs of a step", setting=settings.GRAPHS_REPLICAS)
def unsharded() -> None:
    def first(true: Any, shares: Shares, step: int) -> Share:
        share: Share = true(dataclasses.replace(shares, replica=0), step)
        return share

    around(Shares, "of_step", first)


@defect("graphs to validate are trained on")
def trained_on_validation() -> None:
    def more(true: Any, graphs: GraphSet, *splits: str) -> Tensor:
        numbers: Tensor = true(graphs, *splits)
        if splits != ("train",):
            return numbers
        # As many as before: the last ones are those to validate.
        others: Tensor = true(graphs, "val")
        return torch.cat((numbers[: -len(others)], others)).sort().values

    def labelled(true: Any, graphs: GraphSet, numbers: Tensor, splits: Any) -> dict[str, Tensor]:
        return dict.fromkeys(splits, graphs.labels[numbers])

    around(GraphSet, "numbers", more)
    around(GraphSet, "targets", labelled)


@defect("validation reported as the test")
def validation_as_test() -> None:
    def swapped(true: Any, graphs: GraphSet, numbers: Tensor, splits: Any) -> dict[str, Tensor]:
        found: dict[str, Tensor] = true(graphs, numbers, splits)
        if "test" in found:
            found["test"] = found["val"]
        return found

    around(GraphSet, "targets", swapped)


@defect("an evaluation without its last micro-batch", setting=settings.GRAPHS_PIPELINE)
def part_of_evaluation() -> None:
    def fewer(true: Any, batches: GraphSetBatches, *arguments: Any) -> Any:
        phase, step, epoch, parts, ids, labelled = arguments
        if phase == "test":
            parts = (*parts[:-1], parts[-1][:0])
        return true(batches, phase, step, epoch, parts, ids, labelled)

    around(GraphSetBatches, "_batch", fewer)


@defect("the loss divided by the batch size at an epoch's end", setting=settings.GRAPHS_REPLICAS)
def divided_by_batch_size() -> None:
    def whole(true: Any, batches: GraphSetBatches, *arguments: Any) -> Batch:
        batch: Batch = true(batches, *arguments)
        if arguments[0] == "test":
            return batch
        return dataclasses.replace(batch, labelled=batches.samples * batches.shares.replicas)

    around(GraphSetBatches, "_batch", whole)


@defect("a split drawn anew in each process", setting=settings.GRAPHS_REPLICAS)
def other_splits() -> None:
    def own(true: Any, graphs: int, split: int) -> Any:
        return true(graphs, split + rank())

    around(load_graph_sets, "drawn_split", own)


@defect("dropout masks by a node's row, not its number")
def masks_by_row() -> None:
    def by_row(true: Any, layer: ReluDropout, x: Tensor, context: Any) -> Tensor:
        rows = torch.arange(len(context.chunk.nodes))
        graph = dataclasses.replace(context.chunk, nodes=rows)
        out: Tensor = true(layer, x, dataclasses.replace(context, graph=graph))
        return out

    around(ReluDropout, "forward", by_row)


@defect("every replica counts all evaluated graphs as its own", setting=settings.GRAPHS_REPLICAS)
def counted_by_all() -> None:
    def whole(true: Any, batches: GraphSetBatches) -> Batch:
        batch: Batch = true(batches)
        graphs = batches.graphs.numbers("val", "test").numpy()
        return dataclasses.replace(batch, samples=len(graphs), sample_ids=graphs)

    around(GraphSetBatches, "_evaluation", whole)
