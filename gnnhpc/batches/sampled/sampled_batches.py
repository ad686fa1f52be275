"""Mini-batches of a sampled graph: in each step some nodes or links, and sampled neighbours.

Replicas share each mini-batch by one order that all compute. An evaluation is of the whole graph,
unless it is sampled too.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gnnhpc.batches.batch import Batch, BatchPlan, Inputs
from gnnhpc.batches.graph_batch import SharedBatches, features_form, microbatches_of
from gnnhpc.batches.sampled.evaluations import build_evaluation
from gnnhpc.batches.sampled.library_loader_base import LibraryLoader
from gnnhpc.batches.sampled.placement import Features, choose
from gnnhpc.batches.sampled.sampler_threads import SamplerThreads, check_compiled
from gnnhpc.batches.sampled.training_samples import (
    SampledChunks,
    TrainingLinks,
    TrainingNodes,
    TrainingSamples,
)
from gnnhpc.core.errors import InputError
from gnnhpc.data.load_graph import load_graph
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.device_copies import wait_for
from gnnhpc.graphs.graph import Graph
from gnnhpc.graphs.link_split import split_links


class SampledBatches(SharedBatches):
    """Raises InputError for a graph that is missing or damaged, for too few nodes or links to train
    on, and for a sampler that is not installed.

    `graph` is given where it is loaded already.
    """

    def __init__(self, plan: BatchPlan, graph: Graph | None = None) -> None:
        experiment = plan.experiment
        assert experiment.sampling is not None
        self.sampling = experiment.sampling
        graph = graph or load_graph(experiment.data, plan.root)
        self.links = None
        self.train: TrainingSamples = TrainingNodes(graph)
        if (task := experiment.task) is not None:
            self.links = split_links(graph, experiment.seed, task.val_share, task.test_share)
            self.train = TrainingLinks(self.links, task.negatives, experiment.seed)
        super().__init__(plan, self.train.train, "links" if self.links else "nodes")
        self.graph = self.train.graph
        ours = self.sampling.sampler == "ours"
        if ours:
            check_compiled()
        else:
            self._check_last_step()
        if experiment.test_steps:
            self.evaluation = build_evaluation(plan, self.graph, self.links)
        # Chosen after an evaluation has taken its memory on the device.
        edges = self.graph.in_edges if ours else None
        self.placement = choose(plan.mesh, self.graph.features, edges)
        self._features = Features(self.graph, plan, self.placement.features)
        self._loader = self._choose_loader()

    def _check_last_step(self) -> None:
        """Raises InputError where a library's sampler would have nothing to sample."""
        parts = self.shares.replicas * self.shares.microbatches
        if self.shares.fewest < parts:
            found = f"{self.samples}, which leaves {self.shares.fewest} nodes to the last step"
            allowed = f"one that leaves {parts}, a node for each micro-batch of sampler "
            where = f"data {self.plan.experiment.data.name}"
            raise InputError(where, "batch_size", found, allowed + self.sampling.sampler)

    def _choose_loader(self) -> SamplerThreads | LibraryLoader:
        sampling = self.sampling
        graph = self.graph.among(self.graph.masks["train"]) if sampling.inductive else self.graph
        if sampling.sampler == "ours":
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

    @contextlib.contextmanager
    def training(self, steps: range) -> Iterator[Iterator[Batch]]:
        with self._loader.open(self.shares, steps) as sampled:
            yield map(self._batch, sampled)

    def _batch(self, sampled: SampledChunks) -> Batch:
        mesh, share = self.plan.mesh, sampled.share
        on_cpu = mesh.device.type == "cpu"
        chunks = [chunk if on_cpu else chunk.to(mesh.device) for chunk in sampled.chunks]
        inputs, gather_s = self._inputs(sampled, chunks)
        return Batch(
            microbatches_of(self.plan, "train", share.step, chunks, inputs),
            valid_targets=share.together * self.train.predictions,
            samples=len(share.places),
            epoch=share.epoch,
            sample_ids=share.places,
            checksum=sampled.checksum,
            loading=replace(sampled.loading, gather_s=gather_s),
        )

    def _inputs(
        self, sampled: SampledChunks, chunks: list[GraphChunk]
    ) -> tuple[list[Inputs | None], float | None]:
        """The features of these chunks, which are on the device, and the seconds of gathering."""
        device = self.plan.mesh.device
        if not self.plan.mesh.is_first:
            return [None] * len(chunks), 0.0
        if sampled.inputs is not None:
            return self._features.on_device(sampled.inputs), sampled.loading.gather_s
        wait_for(device)
        began_s = time.perf_counter()
        on_device = self.placement.features == "device"
        inputs = self._features.gathered(chunks if on_device else sampled.chunks)
        wait_for(device)
        gather_s = time.perf_counter() - began_s
        return self._features.on_device(inputs), gather_s

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
