"""Sampled mini-batches: which nodes, which neighbours, and how long drawing them took."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gnnhpc.batches import order
from gnnhpc.batches.batch import Batch, Loading
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.ring import Ring
from gnnhpc.batches.sampled import draws as draws_module
from gnnhpc.batches.sampled import own_draws
from gnnhpc.batches.sampled.graph_sampler import GraphSampler, SampledBlock
from gnnhpc.batches.sampled.own_draws import OwnDraws
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.batches.sampled.sampled_evaluation import SampledEvaluation
from gnnhpc.batches.shares import Share, Shares
from gnnhpc.check.plain.draws import draws
from gnnhpc.data import graphs as graphs_module
from gnnhpc.data.cache import Arrays
from gnnhpc.data.settings import Data, RedditShaped
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.in_edges import InEdges
from gnnhpc.kernels.memory import FRESH, Memory
from gnnhpc.kernels.sample import Drawn, Layer, Sampler
from gnnhpc.models.convolutions import weights
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, rank, replace

KIND = "sampled mini-batches"
defect = functools.partial(planted, kind=KIND)


@defect("every replica draws all nodes of a step", setting=settings.SAMPLED_REPLICAS)
def unsharded() -> None:
    """The study's DGL: its loader was not told of the other processes."""

    def whole(true: Any, shares: Shares, step: int) -> Share:
        share: Share = true(dataclasses.replace(shares, replica=0), step)
        return share

    around(Shares, "of_step", whole)


@defect("a rank without the last mini-batch of an epoch", setting=settings.SAMPLED_REPLICAS)
def without_last() -> None:
    def left_out(true: Any, shares: Shares, step: int) -> Share:
        share: Share = true(shares, step)
        if shares.replica == 0 or (step + 1) % shares.steps_per_epoch:
            return share
        empty = tuple(seeds[:0] for seeds in share.seeds)
        return dataclasses.replace(share, places=share.places[:0], seeds=empty)

    around(Shares, "of_step", left_out)


@defect("nodes never shuffled again", setting=settings.SAMPLED)
def never_shuffled() -> None:
    around(order, "permutation", lambda true, samples, seed, epoch: true(samples, seed, 0))


@defect("the last mini-batch's loss divided by the batch size", setting=settings.SAMPLED)
def divided_by_batch_size() -> None:
    def whole(true: Any, batches: SampledBatches, drawn: Any) -> Batch:
        batch: Batch = true(batches, drawn)
        return dataclasses.replace(batch, labelled=batches.samples)

    around(SampledBatches, "_batch", whole)


def drawn_by(places: Callable[[Iterator[int], int, int], list[int]]) -> None:
    """The sampler in Python, with another rule of which `k` of `n` neighbours are drawn."""

    def draw(sampler: Sampler, layer: Layer, memory: Memory) -> Drawn:
        rows, counts, edges, sources = sampler.nodes.tolist(), [], [], []
        for row in rows:
            first, degree = int(sampler.indptr[row]), int(sampler.indptr[row + 1])
            degree -= first
            numbers = draws(layer.seed, row, layer.step, layer.layer)
            few = degree <= layer.fanout
            chosen = list(range(degree)) if few else places(numbers, degree, layer.fanout)
            counts.append(len(chosen) + 1)
            edges += [*(first + place for place in chosen), len(sampler.columns) + row]
            sources += [*(int(sampler.columns[first + place]) for place in chosen), row]
        rows += sorted(set(sources) - set(rows))
        number = {node: place for place, node in enumerate(rows)}
        sampler._nodes[: len(rows)] = torch.tensor(rows)
        sampler._rows = len(rows)
        indptr = torch.tensor([0, *counts]).cumsum(0)
        local = torch.tensor([number[node] for node in sources])
        return Drawn(indptr, local, torch.tensor(edges), len(rows))

    replace(Sampler, "draw", draw)


@defect("Floyd's last candidate never drawn", setting=settings.SAMPLED)
def floyd_short() -> None:
    """`% j` for `% (j + 1)`: issue 385 of torch-sparse."""

    def picked(numbers: Iterator[int], n: int, k: int) -> list[int]:
        chosen: set[int] = set()
        for last in range(n - k, n):
            drawn = next(numbers) % max(last, 1)
            chosen.add(last if drawn in chosen else drawn)
        return sorted(chosen)

    drawn_by(picked)


@defect("neighbours drawn by 16 bits modulo their number", setting=settings.SAMPLED)
def sixteen_bits() -> None:
    def picked(numbers: Iterator[int], n: int, k: int) -> list[int]:
        chosen: set[int] = set()
        while len(chosen) < k:
            chosen.add((next(numbers) & 0xFFFF) % n)
        return sorted(chosen)

    drawn_by(picked)


@defect("always the first neighbours", setting=settings.SAMPLED)
def first_neighbours() -> None:
    drawn_by(lambda numbers, n, k: list(range(k)))


@defect("one neighbour fewer than the fan-out", setting=settings.SAMPLED)
def fewer() -> None:
    def short(true: Any, sampler: Sampler, layer: Layer, memory: Memory) -> Drawn:
        drawn: Drawn = true(sampler, dataclasses.replace(layer, fanout=layer.fanout - 1), memory)
        return drawn

    around(Sampler, "draw", short)


@defect("neighbours drawn with replacement unasked", setting=settings.SAMPLED)
def with_replacement() -> None:
    def again(true: Any, sampler: Sampler, layer: Layer, memory: Memory) -> Drawn:
        drawn: Drawn = true(sampler, dataclasses.replace(layer, replace=True), memory)
        return drawn

    around(Sampler, "draw", again)


@defect("the same neighbours in every layer, told as drawn anew", setting=settings.SAMPLED)
def one_layer() -> None:
    def same(true: Any, sampler: Sampler, layer: Layer, memory: Memory) -> Drawn:
        drawn: Drawn = true(sampler, dataclasses.replace(layer, layer=0), memory)
        return drawn

    around(Sampler, "draw", same)


@defect("the neighbours of the step before", setting=settings.SAMPLED)
def step_before() -> None:
    def stale(
        true: Any, sampler: GraphSampler, seeds: Tensor, step: int, *without: Any, **memory: Any
    ) -> GraphChunk:
        chunk: GraphChunk = true(sampler, seeds, max(step - 1, 0), *without, **memory)
        return chunk

    around(GraphSampler, "chunk", stale)


@defect("an edge that the graph does not have", setting=settings.SAMPLED)
def other_edge() -> None:
    def moved(true: Any, sampler: Sampler, layer: Layer, memory: Memory) -> Drawn:
        drawn: Drawn = true(sampler, layer, memory)
        source = drawn.source.clone()
        loops = drawn.indptr[1:] - 1
        others = torch.ones(len(source), dtype=torch.bool)
        others[loops] = False
        source[others] = (source[others] + 1) % drawn.rows_in
        return dataclasses.replace(drawn, source=source)

    around(Sampler, "draw", moved)


@defect("edges by source of another mini-batch's size", setting=settings.SAMPLED)
def wrong_transpose() -> None:
    true = SampledBlock.transpose.func  # type: ignore[attr-defined]

    def shifted(block: SampledBlock) -> Any:
        found = true(block)
        return dataclasses.replace(found, target=found.target.roll(1))

    shifted_property = functools.cached_property(shifted)
    shifted_property.__set_name__(SampledBlock, "transpose")
    SampledBlock.transpose = shifted_property  # type: ignore[assignment]


@defect("features kept in half precision, and not told", setting=settings.SAMPLED_DENSE)
def rounded_features() -> None:
    def halves(true: Any, config: Data, *args: Any) -> Arrays:
        arrays: Arrays = true(config, *args)
        return arrays | {"dense": arrays["dense"].astype(np.float16)}

    _of_training_alone(halves)


@defect("features told to be kept in half precision, and not", setting=settings.SAMPLED_HALVES)
def whole_features() -> None:
    def whole(true: Any, config: Data, *args: Any) -> Arrays:
        arrays: Arrays = true(config.model_copy(update={"storage": "float32"}), *args)
        return arrays

    _of_training_alone(whole)


def _of_training_alone(change: Callable[..., Arrays]) -> None:
    """What is read to check it is left as it is."""
    reader = graphs_module._READERS[RedditShaped]
    graphs_module._READERS[RedditShaped] = functools.partial(change, reader)


@defect("features of the rows beside", setting=settings.SAMPLED)
def shifted_features() -> None:
    def rolled(true: Any, draws: OwnDraws, *args: Any) -> Any:
        drawn = true(draws, *args)
        inputs = tuple(x.to_dense().roll(1, 0) for x in drawn.inputs)
        return dataclasses.replace(drawn, inputs=inputs)

    around(OwnDraws, "_draw", rolled)


@defect("labels of other nodes of the mini-batch", setting=settings.SAMPLED)
def shifted_labels() -> None:
    def rolled(true: Any, graph: Graph, *asked: Any) -> dict[str, Tensor]:
        return {split: labels.roll(1) for split, labels in true(graph, *asked).items()}

    around(Graph, "targets", rolled)


@defect("a mean over drawn neighbours divided by all", setting=settings.SAMPLED)
def mean_of_all() -> None:
    def by_degree(true: Any, block: Any, dtype: Any) -> Any:
        found = true(block, dtype)
        return dataclasses.replace(found, target=found.target * 0.5)

    around(weights, "mean_weights", by_degree)


@defect("a sampled run evaluated on the validation mask", setting=settings.SAMPLED)
def validation_mask() -> None:
    def other(true: Any, chunk: GraphChunk, phase: str) -> dict[str, Tensor]:
        found: dict[str, Tensor] = true(chunk, phase)
        return found | {"test": found["val"]} if phase == "test" else found

    replace(ChunkBatches, "_targets", staticmethod(functools.partial(other, ChunkBatches._targets)))


@defect("drawing a mini-batch left out of its step", setting=settings.SAMPLED_SLOW)
def drawing_not_timed() -> None:
    def untold(true: Any, trainer: Trainer, *args: Any) -> Any:
        trainer._waited_s = 0.0
        return true(trainer, *args)

    def slow(true: Any, *args: Any, **memory: Any) -> Any:
        time.sleep(0.01)
        return true(*args, **memory)

    around(GraphSampler, "chunk", slow)
    around(Trainer, "_record_step", untold)


@defect("drawing in advance told in thousands of seconds", setting=settings.SAMPLED)
def drawing_in_other_units() -> None:
    def told(true: Any, loading: Loading, *args: Any, **values: Any) -> None:
        true(loading, *args, **values)
        if loading.sample_s is not None:
            object.__setattr__(loading, "sample_s", loading.sample_s / 1e3)

    around(Loading, "__init__", told)


@defect("one replica draws by another seed", setting=settings.SAMPLED_REPLICAS)
def other_seed() -> None:
    def changed(true: Any, sampler: GraphSampler, *args: Any, **options: Any) -> None:
        graph, fanouts, seed = args
        true(sampler, graph, fanouts, seed + rank(), **options)

    around(GraphSampler, "__init__", changed)


def with_step(of: dict[int, int]) -> None:
    """Some steps draw what others should."""

    def other(
        true: Any, draws: OwnDraws, sampler: GraphSampler, shares: Shares, step: int, ring: Ring
    ) -> Any:
        return true(draws, sampler, shares, of.get(step, step), ring)

    around(OwnDraws, "_draw", other)


@defect("a mini-batch delivered twice", setting=settings.SAMPLED)
def delivered_twice() -> None:
    with_step({5: 4})


@defect("two mini-batches delivered out of order", setting=settings.SAMPLED)
def out_of_order() -> None:
    with_step({4: 5, 5: 4})


@defect("labels of the other micro-batch", setting=settings.SAMPLED_PARTS)
def labels_of_other() -> None:
    def swapped(true: Any, batches: SampledBatches, drawn: Any) -> Batch:
        batch: Batch = true(batches, drawn)
        first, second = batch.microbatches
        if len(first.targets["train"]) != len(second.targets["train"]):
            return batch
        parts = (
            dataclasses.replace(first, targets=second.targets),
            dataclasses.replace(second, targets=first.targets),
        )
        return dataclasses.replace(batch, microbatches=parts)

    around(SampledBatches, "_batch", swapped)


@defect("rows of a buffer that the next draw writes to", setting=settings.SAMPLED_PARTS)
def buffer_used_again() -> None:
    def shared(true: Any, sampler: GraphSampler, *asked: Any, **memory: Any) -> GraphChunk:
        chunk: GraphChunk = true(sampler, *asked, **memory)
        return dataclasses.replace(chunk, nodes=sampler._sampler.nodes)

    around(GraphSampler, "chunk", shared)


def _know_used_buffers() -> None:
    """Memory learns whether its buffer held another mini-batch: never that of a self-check's."""

    def lend(true: Any, ring: Ring) -> Memory:
        memory: Any = true(ring)
        if memory is not FRESH and len(memory._bytes):
            places = vars(ring).setdefault("places", set())
            memory.used = memory._bytes.ctypes.data in places
            places.add(memory._bytes.ctypes.data)
        return memory  # type: ignore[no-any-return]

    around(Ring, "lend", lend)


def _is_used(memory: Memory) -> bool:
    return getattr(memory, "used", False)


@defect("two edges by source exchanged, in a buffer used again", setting=settings.SAMPLED)
def exchanged_by_source() -> None:
    """A counting sort that is off by one: each at the other's place."""
    _know_used_buffers()
    true = SampledBlock.transpose.func  # type: ignore[attr-defined]

    def exchanged(block: SampledBlock) -> Any:
        found = true(block)
        if _is_used(block.memory):
            place = int(found.indptr[1])
            for part in (found.edge, found.target):
                part[[place - 1, place]] = part[[place, place - 1]]
        return found

    exchanged_property = functools.cached_property(exchanged)
    exchanged_property.__set_name__(SampledBlock, "transpose")
    SampledBlock.transpose = exchanged_property  # type: ignore[assignment]


@defect("degrees of other rows, in a buffer used again", setting=settings.SAMPLED_GCN)
def degrees_left_behind() -> None:
    _know_used_buffers()

    def moved(true: Any, sampler: GraphSampler, *asked: Any, memory: Memory = FRESH) -> GraphChunk:
        chunk: GraphChunk = true(sampler, *asked, memory=memory)
        if _is_used(memory):
            chunk.degree[chunk.own :] = chunk.degree[chunk.own :].roll(1)
        return chunk

    around(GraphSampler, "chunk", moved)


@defect("sampled edges counted twice", setting=settings.SAMPLED)
def edges_twice() -> None:
    around(draws_module, "edges_of", lambda true, *asked: 2 * true(*asked))


@defect("degrees of the sample for those of the graph", setting=settings.SAMPLED_GCN)
def degrees_of_sample() -> None:
    def drawn(true: Any, sampler: GraphSampler, *asked: Any, **memory: Any) -> GraphChunk:
        chunk: GraphChunk = true(sampler, *asked, **memory)
        degree = chunk.degree.clone()
        first = chunk.blocks[0]
        degree[: first.rows_out] = first.indptr.diff()
        return dataclasses.replace(chunk, degree=degree)

    around(GraphSampler, "chunk", drawn)


@defect("a node left out of its mini-batch", setting=settings.SAMPLED)
def node_left_out() -> None:
    def fewer_seeds(true: Any, shares: Shares, step: int) -> Share:
        share: Share = true(shares, step)
        return dataclasses.replace(share, seeds=tuple(seeds[1:] for seeds in share.seeds))

    around(Shares, "of_step", fewer_seeds)


@defect("inductive training with the edges of test nodes", setting=settings.SAMPLED_INDUCTIVE)
def edges_of_test_nodes() -> None:
    around(InEdges, "among", lambda true, edges, kept: edges)


@defect("inductive training with edges from nodes to validate", setting=settings.SAMPLED_INDUCTIVE)
def edges_from_others() -> None:
    """Only the ends that edges lead to are looked at."""

    def into(true: Any, edges: InEdges, kept: Tensor) -> InEdges:
        alive = torch.repeat_interleave(kept, edges.degrees)
        degrees = torch.where(kept, edges.degrees, 0)
        return InEdges(functional.pad(degrees.cumsum(0), (1, 0)), edges.source[alive])

    around(InEdges, "among", into)


@defect("an evaluation without the edges of test nodes", setting=settings.SAMPLED_EVALUATION)
def evaluated_inductively() -> None:
    def few(true: Any, evaluation: SampledEvaluation, *args: Any) -> None:
        true(evaluation, *args)
        graph, sampler = evaluation._graph, evaluation._sampler
        edges = graph.in_edges.among(graph.masks["train"])
        evaluation._sampler = GraphSampler(graph, sampler.fanouts, sampler.seed, edges=edges)

    around(SampledEvaluation, "__init__", few)


@defect("an evaluation whose neighbours are drawn anew", setting=settings.SAMPLED_EVALUATION)
def evaluated_anew() -> None:
    steps = itertools.count()

    def other(true: Any, evaluation: SampledEvaluation, m: int) -> GraphChunk:
        return evaluation._sampler.chunk(evaluation._seeds[m], next(steps))

    around(SampledEvaluation, "_chunk", other)


@defect("an evaluation of the easiest half of its nodes", setting=settings.SAMPLED_EVALUATION)
def evaluated_half() -> None:
    def few(true: Any, evaluation: SampledEvaluation, *args: Any) -> None:
        true(evaluation, *args)
        own = evaluation._own[: len(evaluation._own) // 2]
        evaluation._own, evaluation._seeds = own, [torch.from_numpy(own)]

    around(SampledEvaluation, "__init__", few)


@defect("every replica evaluates the same part of the graph", setting=settings.SAMPLED_REPLICAS)
def evaluated_by_all() -> None:
    def first(true: Any, batches: ChunkBatches, plan: BatchPlan, *graph: Graph) -> None:
        mesh = dataclasses.replace(plan.mesh, rank=0)
        true(batches, dataclasses.replace(plan, mesh=mesh), *graph)

    around(ChunkBatches, "__init__", first)


@defect("an evaluation counted by twice its nodes", setting=settings.SAMPLED_EVALUATION)
def counted_twice() -> None:
    def twice(true: Any, evaluation: SampledEvaluation, *args: Any) -> Batch:
        batch: Batch = true(evaluation, *args)
        ids = np.tile(batch.sample_ids, 2)
        return dataclasses.replace(batch, samples=len(ids), sample_ids=ids)

    around(SampledEvaluation, "_batch", twice)


@defect("mini-batches drawn in advance between steps too", setting=settings.SAMPLED)
def never_still() -> None:
    """Where a draw takes longer than a step: the records would hold a part of what it costs."""

    def slow(true: Any, *given: Any) -> Any:
        time.sleep(0.02)
        return true(*given)

    replace(OwnDraws, "stand_still", lambda draws: None)
    around(own_draws, "_chunk", slow)
    # As a gather of metrics over a network takes.
    around(Trainer, "_gather_metrics", lambda true, *given: (time.sleep(0.005), true(*given))[1])
