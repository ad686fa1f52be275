"""Checks which samples a run trains on and evaluates, and the edges of the chunks of a graph."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gnnhpc.batches.batch import Batches
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.data.load_graph import load_graph
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.graphs.graph import Graph
from gnnhpc.records.schema import Check, Phase
from gnnhpc.training.listeners import Listener, StepTaken
from gnnhpc.validation.reference.random_numbers import Ids, SampleSchedule
from gnnhpc.validation.verdicts import on_all_ranks, verdict_of


@dataclass
class _Observed:
    """What one rank reports to the others since they last compared."""

    faults: list[str] = field(default_factory=list)
    checksums: dict[str, int] = field(default_factory=dict)
    """Step -> checksum of its batch."""
    covered: dict[Phase, Ids] = field(default_factory=dict)
    """Samples of the first step of a phase without a schedule."""


class SampleOrder(Listener):
    """Observes one rank's batches; `checks` is a collective that all ranks call together.

    Samples of mini-batches must be those of the permutation that seed and epoch give, which covers
    an epoch without duplicates. Samples of chunks of a graph and of its evaluation must be the same
    in every step, each on one replica. Batches must be the same on all stages.
    """

    def __init__(self, experiment: Experiment, mesh: Mesh, batches: Batches) -> None:
        self._mesh = mesh
        self._schedules: dict[Phase, SampleSchedule] = {}
        if experiment.batch_size is not None:
            self._schedules["train"] = SampleSchedule(experiment, batches.total_samples)
        if isinstance(batches, ImageBatches) and experiment.test_steps:
            self._schedules["test"] = SampleSchedule(experiment, len(batches.images["test"]))
        self._observed = _Observed()
        self._known: list[str] = []
        self._unchanged: dict[Phase, Ids] = {}
        self._evaluated = 0
        """Test steps since the evaluation began."""

    def evaluation_begins(self) -> None:
        self._evaluated = 0

    def step_taken(self, taken: StepTaken) -> None:
        step, ids = f"{taken.phase} step {taken.step}", taken.batch.sample_ids
        cause = self._difference(taken, ids)
        if cause is not None:
            self._observed.faults.append(f"{step}: {cause}")
        self._observed.checksums[step] = taken.batch.checksum
        self._evaluated += taken.phase == "test"

    def _difference(self, taken: StepTaken, ids: Ids) -> str | None:
        schedule = self._schedules.get(taken.phase)
        if schedule is not None:
            step = taken.step if taken.phase == "train" else self._evaluated
            if np.array_equal(ids, schedule.share(step, self._mesh.replica)):
                return None
            return f"the samples are not those of the permutation of epoch {schedule.epoch(step)}"
        if not np.array_equal(self._unchanged.setdefault(taken.phase, ids), ids):
            return "the samples are not those of the steps before"
        self._observed.covered.setdefault(taken.phase, ids)
        return None

    def checks(self) -> list[Check]:
        """Compare all ranks and return the checks, on every rank; a collective."""
        everyone: list[_Observed] = self._mesh.gather_objects(self._observed)
        self._observed = _Observed()
        layout = self._mesh.layout
        for rank, observed in enumerate(everyone):
            self._known += [f"rank {rank}, {fault}" for fault in observed.faults]
        replicas = [everyone[rank] for rank in layout.replica_ranks(0)]
        for phase in replicas[0].covered:
            together = np.concatenate([each.covered[phase] for each in replicas])
            twice = len(together) - len(np.unique(together))
            if twice:
                self._known.append(f"{phase}: {twice} samples are used twice, replicas overlap")
        for replica, first in enumerate(replicas):
            for stage, rank in enumerate(layout.pipeline_ranks(replica)):
                other = everyone[rank].checksums
                steps = [step for step, one in first.checksums.items() if other.get(step) != one]
                if steps:
                    self._known.append(
                        f"replica {replica}, {steps[0]}: stages 0 and {stage} have different "
                        "batches, so that labels do not belong to inputs"
                    )
        good = "samples are those of the seed's permutation, and the same on all stages"
        return [verdict_of("order", self._known, good)]


def check_chunks(
    experiment: Experiment, batches: Batches, root: Path | None, mesh: Mesh
) -> list[Check]:
    """Compare the edges in the chunks of all ranks with the graph that the loader gives.

    In `halo` chunks each computed row must have the whole graph's in-degree in every layer. In
    others it must have all edges from nodes of the chunk. A collective; an empty list where
    mini-batches are not chunks.
    """
    if not isinstance(batches, ChunkBatches):
        return []

    def count() -> tuple[list[str], int, int]:
        """What is wrong; edges of the last layer that uses neighbours; edges of the graph."""
        graph, faults, kept = load_graph(experiment.data, root), list[str](), 0
        edges = graph.edges.shape[1]
        with batches.open("train", 0, 1) as opened:
            for number, microbatch in enumerate(next(iter(opened)).microbatches):
                chunk = microbatch.context.chunk
                causes = _wrong_degrees(graph, chunk, halo=experiment.chunks == "halo")
                faults.extend(f"chunk {number} {cause}" for cause in causes)
                if chunk.present_blocks:
                    kept += int((chunk.present_blocks[-1].edge < edges).sum())
        return faults, kept, edges

    everyone = on_all_ranks(mesh, count)
    known = [f"rank {rank}: {each}" for rank, one in enumerate(everyone) for each in one[0]]
    kept = sum(everyone[rank][1] for rank in mesh.layout.replica_ranks(0))
    share = kept / max(1, everyone[0][2])
    detail = f"{experiment.chunks} chunks have the graph's degrees and {share:.1%} of its edges"
    return [verdict_of("chunks", known, detail, values={"edges_kept": share})]


def _wrong_degrees(graph: Graph, chunk: GraphChunk, *, halo: bool) -> Iterator[str]:
    """The first row of each layer that has another number of edges than its node."""
    nodes = chunk.nodes.cpu().numpy()
    source, target = graph.edges.numpy()
    if not halo:
        inside = np.zeros(graph.nodes, np.bool_)
        inside[nodes[nodes >= 0]] = True
        target = target[inside[source] & inside[target]]
    degrees: Ids = np.bincount(target, minlength=graph.nodes)
    for layer, block in enumerate(chunk.present_blocks):
        computed = nodes[: block.rows_out]
        # Each row has a self-loop, but padding has no edge.
        expected = np.where(computed >= 0, 1 + degrees[computed], 0)
        actual = np.diff(block.indptr.cpu().numpy())
        wrong = np.flatnonzero(actual != expected)
        if len(wrong):
            row = int(wrong[0])
            yield (
                f"has {actual[row]} edges into node {computed[row]} in layer {layer}, "
                f"{expected[row]} are the graph's"
            )
