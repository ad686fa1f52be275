"""Mini-batches of a sampled graph: in each step some nodes or links, and sampled neighbours.

Replicas share each mini-batch by one order that all compute. An evaluation is of the whole graph,
unless it is sampled too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gnnhpc.batches.batch import Batch, BatchPlan, Inputs, Loading, MicroBatch
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.graph_batch import RepeatedBatch, chunk_batch, features_form
from gnnhpc.batches.sampled.evaluations import (
    SampledEvaluation,
    evaluate_by_layers,
    evaluate_links,
)
from gnnhpc.batches.sampled.neighbor_sampler import NeighborSampler
from gnnhpc.batches.sampled.placement import Features, choose
from gnnhpc.batches.sampled.training_samples import (
    ChunkLoader,
    SampledChunks,
    TrainingLinks,
    TrainingNodes,
    TrainingSamples,
)
from gnnhpc.batches.shuffle import Shares
from gnnhpc.core.errors import InputError
from gnnhpc.data.load_graph import load_graph
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.layerwise import EDGES_AT_ONCE
from gnnhpc.graphs.link_split import split_links
from gnnhpc.kernels.sample_neighbors import is_here
from gnnhpc.records.schema import Phase

Evaluation = ChunkBatches | RepeatedBatch | SampledEvaluation


class SampledBatches:
    """Raises InputError for a graph that is missing or damaged, for too few nodes or links to train
    on, and for a sampler that is not installed.

    `graph` is given where it is loaded already.
    """

    fixed_rows = False

    def __init__(self, plan: BatchPlan, graph: Graph | None = None) -> None:
        experiment, mesh = plan.experiment, plan.mesh
        assert experiment.sampling is not None
        self.plan, self.sampling = plan, experiment.sampling
        graph = graph or load_graph(experiment.data, plan.root)
        self.links = None
        self.train: TrainingSamples = TrainingNodes(graph)
        if (task := experiment.task) is not None:
            self.links = split_links(graph, experiment.seed, task.val_share, task.test_share)
            self.train = TrainingLinks(self.links, task.negatives, experiment.seed)
        self.graph = self.train.graph
        self.shares = Shares.of(self.train.train, plan)
        self.samples, self.total_samples = self.shares.batch_size, len(self.shares.train)
        self._check_sizes()
        self.steps_per_epoch = self.shares.steps_per_epoch
        ours = self.sampling.sampler == "ours"
        if ours:
            from gnnhpc.batches.sampled.sampler_threads import check_compiled

            check_compiled()
        evaluated = self.sampling.evaluation if experiment.test_steps else None
        self._evaluation = self._whole_evaluation() if evaluated == "whole" else None
        # Chosen after an evaluation has taken its memory on the device.
        edges = self.graph.in_edges if ours else None
        self.placement = choose(mesh, self.graph.features, edges)
        self._features = Features(self.graph, plan, self.placement.features)
        self._loader = self._choose_loader()
        if evaluated == "sampled":
            self._evaluation = self._sampled_evaluation()

    def _check_sizes(self) -> None:
        replicas, where = self.shares.replicas, f"data {self.plan.experiment.data.name}"
        if self.samples * replicas > self.total_samples:
            found = f"{self.samples} x {replicas} replicas"
            allowed = f"at most the {self.total_samples} {self.train.name}"
            raise InputError(where, "batch_size", found, allowed)
        parts = replicas * self.shares.microbatches
        if self.sampling.sampler != "ours" and self.shares.fewest < parts:
            found = f"{self.samples}, which leaves {self.shares.fewest} nodes to the last step"
            allowed = f"one that leaves {parts}, a node for each micro-batch of sampler "
            raise InputError(where, "batch_size", found, allowed + self.sampling.sampler)

    def _choose_loader(self) -> ChunkLoader:
        sampling = self.sampling
        graph = self.graph.among(self.graph.masks["train"]) if sampling.inductive else self.graph
        if sampling.sampler == "ours":
            from gnnhpc.batches.sampled.sampler_threads import SamplerThreads

            on_device = self.placement.graph == "device"
            return SamplerThreads(
                *(self.train, graph, sampling, self.plan, self._features), on_device=on_device
            )
        seed = self.plan.experiment.seed
        if sampling.sampler == "pyg":
            from gnnhpc.batches.sampled.pyg_loader import PygLoader

            return PygLoader(graph, sampling, seed)
        from gnnhpc.batches.sampled.dgl_loader import DglLoader

        return DglLoader(graph, sampling, seed)

    def _sampled_evaluation(self) -> Evaluation:
        sampling = self.sampling
        sampler = NeighborSampler(
            self.graph,
            sampling.fanouts,
            self.plan.experiment.seed,
            semantics=sampling.semantics,
        )
        return SampledEvaluation(self.plan, self.graph, sampler, self._features)

    def _whole_evaluation(self) -> Evaluation:
        """The whole graph at once; a large graph layer by layer."""
        experiment, graph = self.plan.experiment, self.graph
        if self.links is not None:
            return evaluate_links(self.plan, self.links)
        large = graph.edges.shape[1] > EDGES_AT_ONCE
        if large and is_here() and self.plan.mesh.device.type == "cpu":
            sampler = NeighborSampler(graph, self.sampling.fanouts, experiment.seed)
            return evaluate_by_layers(self.plan, graph, sampler)
        return ChunkBatches(replace(self.plan, experiment=experiment.whole_graph), graph)

    def shape_after(self, index: int) -> tuple[int, ...]:
        """The rows are 0: they differ from step to step."""
        return self.plan.shape_after(index, 0)

    def example(self) -> MicroBatch:
        with self.open("train", 0, 1) as batches:
            first: MicroBatch = next(batches).microbatches[0]
        # The layers of all stages are timed with it, the last one's too.
        return replace(first, targets={"train": first.context.chunk.targets["train"]})

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        if phase == "test":
            assert self._evaluation is not None
            with self._evaluation.open(phase, start, stop) as batches:
                yield batches
            return
        with self._loader.open(self.shares, range(start, stop)) as sampled:
            yield map(self._batch, sampled)

    def _batch(self, sampled: SampledChunks) -> Batch:
        mesh, share = self.plan.mesh, sampled.share
        on_cpu = mesh.device.type == "cpu"
        chunks = [chunk if on_cpu else chunk.to(mesh.device) for chunk in sampled.chunks]
        inputs, gather_s = self._inputs(sampled, chunks)
        return chunk_batch(
            self.plan,
            "train",
            share.step,
            chunks,
            inputs,
            sample_ids=share.places,
            valid_targets=share.together * self.train.predictions,
            epoch=share.epoch,
            checksum=sampled.checksum,
            loading=Loading(sampled.sample_s, gather_s, sampled.edges),
        )

    def _inputs(
        self, sampled: SampledChunks, chunks: list[GraphChunk]
    ) -> tuple[list[Inputs | None], float | None]:
        """The features of these chunks, which are on the device, and the seconds of gathering."""
        if sampled.inputs is None:
            return self._features.taken(sampled.chunks, chunks)
        if not self.plan.mesh.is_first:
            return [None] * len(chunks), sampled.gather_s
        return [*self._features.on_device(chunks, sampled.inputs)], sampled.gather_s

    def graph_metadata(self) -> dict[str, Any]:
        sampling = self.sampling
        return {
            "mode": "sampled",
            "features": features_form(self.graph.features, self.plan),
            "sampler": sampling.sampler,
            "semantics": sampling.semantics,
            "fanouts": list(sampling.fanouts),
            "workers": sampling.workers,
            "train_links" if self.links else "train_nodes": self.total_samples,
            "steps_per_epoch": self.steps_per_epoch,
            "inductive": sampling.inductive,
            "evaluation": sampling.evaluation,
            **self.placement.metadata(),
            **self._loader.metadata(),
        }
