"""Batches of a sampled graph: in each step some nodes or links of it, and neighbours drawn.

Replicas share each mini-batch by one order that all compute. An evaluation is of the whole graph,
unless it is to be sampled.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs, Loading, MicroBatch
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.sampled.draws import Drawn, Draws
from gnnhpc.batches.sampled.features import Features
from gnnhpc.batches.sampled.graph_sampler import GraphSampler
from gnnhpc.batches.sampled.in_turn_batches import InTurnBatches
from gnnhpc.batches.sampled.learnt import Learnt, LinksLearnt, NodesLearnt
from gnnhpc.batches.sampled.link_evaluation import LinkEvaluation
from gnnhpc.batches.sampled.placement import choose
from gnnhpc.batches.sampled.sampled_evaluation import SampledEvaluation
from gnnhpc.batches.shuffle import Shares
from gnnhpc.core.errors import InputError
from gnnhpc.data.graphs import load_graph
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.in_turn import EDGES_AT_ONCE
from gnnhpc.kernels.sample_neighbors import is_here
from gnnhpc.links.split import split_links
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase

Evaluation = ChunkBatches | InTurnBatches | LinkEvaluation | SampledEvaluation


class SampledBatches:
    """Raises InputError for a graph that is missing or damaged, for too few nodes or links to train
    on, and for a sampler that is not here.

    `graph` is given where it is loaded already.
    """

    fixed_rows = False
    drawn = True

    def __init__(self, plan: BatchPlan, graph: Graph | None = None) -> None:
        experiment, mesh = plan.experiment, plan.mesh
        assert experiment.sampling is not None
        assert experiment.batch_size is not None
        self.plan, self.sampling = plan, experiment.sampling
        graph = graph or load_graph(experiment.data, plan.root)
        self.links = None
        if (task := experiment.task) is not None:
            self.links = split_links(graph, experiment.seed, task.val_share, task.test_share)
        self.learnt = self._learnt(graph)
        self.graph = self.learnt.graph
        self.shares = Shares(
            self.learnt.train,
            experiment.batch_size,
            experiment.microbatches,
            mesh.layout.replicas,
            mesh.replica,
            experiment.seed,
        )
        self.samples, self.total_samples = experiment.batch_size, len(self.shares.train)
        self._check_sizes()
        self.steps_per_epoch = self.shares.steps_per_epoch
        ours = self.sampling.sampler == "ours"
        if ours:
            from gnnhpc.batches.sampled.own_draws import check_is_here

            check_is_here()
        evaluated = "nothing" if not experiment.test_steps else self.sampling.evaluation
        self._whole: Evaluation | None = self._evaluation() if evaluated == "whole" else None
        # After what an evaluation keeps on a device, which is no longer free.
        edges = self.graph.in_edges if ours else None
        self.placement = choose(mesh, self.graph.features, edges)
        self._features = Features(self.graph, plan, self.placement.features)
        self._draws = self._choose_sampler()
        if evaluated == "sampled":
            self._whole = self._sampled_evaluation()

    def _learnt(self, graph: Graph) -> Learnt:
        task = self.plan.experiment.task
        if task is None or self.links is None:
            return NodesLearnt(graph)
        return LinksLearnt(self.links, task.negatives, self.plan.experiment.seed)

    def _check_sizes(self) -> None:
        replicas, where = self.shares.replicas, f"data {self.plan.experiment.data.name}"
        if self.samples * replicas > self.total_samples:
            found = f"{self.samples} x {replicas} replicas"
            allowed = f"at most the {self.total_samples} {self.learnt.name}"
            raise InputError(where, "batch_size", found, allowed)
        parts = replicas * self.shares.microbatches
        if self.sampling.sampler != "ours" and self.shares.fewest < parts:
            found = f"{self.samples}, which leaves {self.shares.fewest} nodes to the last step"
            allowed = f"one that leaves {parts}, a node for each micro-batch of sampler "
            raise InputError(where, "batch_size", found, allowed + self.sampling.sampler)

    def _choose_sampler(self) -> Draws:
        sampling, seed = self.sampling, self.plan.experiment.seed
        if sampling.sampler == "ours":
            from gnnhpc.batches.sampled.own_draws import OwnDraws

            there = self.placement.graph == "device"
            return OwnDraws(self.learnt, sampling, seed, self.plan, self._features, on_device=there)
        from gnnhpc.batches.sampled.libraries.library_draws import LibraryDraws

        graph = self.graph.among(self.graph.masks["train"]) if sampling.inductive else self.graph
        return LibraryDraws(graph, sampling, seed, self.steps_per_epoch)

    def _sampled_evaluation(self) -> SampledEvaluation:
        experiment, graph, sampling = self.plan.experiment, self.graph, self.sampling
        sampler = GraphSampler(
            graph,
            sampling.fanouts,
            experiment.seed,
            semantics=sampling.semantics,
            replace=sampling.replace,
        )
        return SampledEvaluation(self.plan, graph, sampler, self._features)

    def _evaluation(self) -> Evaluation:
        """Of the whole graph, a large one layer by layer."""
        experiment, graph, sampling = self.plan.experiment, self.graph, self.sampling
        if self.links is not None:
            return LinkEvaluation(self.plan, self.links)
        if (
            graph.edges.shape[1] > EDGES_AT_ONCE
            and is_here()
            and self.plan.mesh.device.type == "cpu"
        ):
            sampler = GraphSampler(graph, sampling.fanouts, experiment.seed)
            return InTurnBatches(self.plan, graph, sampler)
        whole = replace(self.plan, experiment=self.plan.experiment.whole_graph)
        return ChunkBatches(whole, self.graph)

    def shape_after(self, index: int) -> tuple[int, ...]:
        """Its rows differ from step to step."""
        layer = self.plan.outlines[max(index, 0)]
        return (0, *(layer.inputs if index < 0 else layer.shape))

    def example(self) -> MicroBatch:
        with self.open("train", 0, 1) as batches:
            first: MicroBatch = next(batches).microbatches[0]
        # Layers of all stages are timed with it, the last one's too.
        return replace(first, targets={"train": first.context.chunk.targets["train"]})

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        if phase == "test":
            assert self._whole is not None
            with self._whole.open(phase, start, stop) as batches:
                yield batches
            return
        with self._draws.open(self.shares, range(start, stop)) as drawn:
            yield map(self._batch, drawn)

    def _batch(self, drawn: Drawn) -> Batch:
        mesh, seed, share = self.plan.mesh, self.plan.experiment.seed, drawn.share
        on_cpu = mesh.device.type == "cpu"
        chunks = [chunk if on_cpu else chunk.to(mesh.device) for chunk in drawn.chunks]
        inputs, gather_s = self._inputs(drawn, chunks)
        microbatches = []
        for m, (x, chunk) in enumerate(zip(inputs, chunks, strict=True)):
            targets = {"train": chunk.targets["train"]} if mesh.has_loss else {}
            context = Context(m, share.step, seed, chunk)
            microbatches.append(MicroBatch(x, targets, context))
        return Batch(
            microbatches=tuple(microbatches),
            labelled=share.together * self.learnt.predictions,
            samples=len(share.places),
            epoch=share.epoch,
            sample_ids=share.places,
            checksum=_checksum(drawn.chunks),
            loading=Loading(drawn.sample_s, gather_s, drawn.edges),
        )

    def _inputs(
        self, drawn: Drawn, chunks: list[GraphChunk]
    ) -> tuple[list[Inputs | None], float | None]:
        """The features of these chunks, which are on the device, and the seconds of copying them
        together."""
        if drawn.inputs is None:
            return self._features.taken(drawn.chunks, chunks)
        if not self.plan.mesh.is_first:
            return [None] * len(chunks), drawn.gather_s
        return [*self._features.on_device(chunks, drawn.inputs)], drawn.gather_s

    def graph_facts(self) -> dict[str, Any]:
        sampling = self.sampling
        return {
            "mode": "sampled",
            "sampler": sampling.sampler,
            "semantics": sampling.semantics,
            "fanouts": list(sampling.fanouts),
            "workers": sampling.workers,
            "train_links" if self.links else "train_nodes": self.total_samples,
            "steps_per_epoch": self.steps_per_epoch,
            "inductive": sampling.inductive,
            "evaluation": sampling.evaluation,
            **self.placement.facts(),
        }


def _checksum(chunks: tuple[GraphChunk, ...]) -> int:
    """CRC-32 of the seeds of these chunks and of their labels."""
    found = 0
    for chunk in chunks:
        found = zlib.crc32(_bytes(chunk.nodes[: chunk.own]), found)
        found = zlib.crc32(_bytes(chunk.targets["train"]), found)
    return found


def _bytes(tensor: Tensor) -> bytes:
    return tensor.cpu().numpy().tobytes()
