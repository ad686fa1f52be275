"""What a rank works on: the mini-batches of its replica, and how their outputs are judged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.image_loader import ImageLoader
from gnnhpc.data.graphs import load_graph
from gnnhpc.data.images import Images, Split, check_batch, load_images
from gnnhpc.engines.base import IGNORED, Loss
from gnnhpc.graphs.chunks import ChunkSet, build_chunks
from gnnhpc.models.context import Context
from gnnhpc.models.outline import LayerOutline
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.records.schema import Phase
from gnnhpc.spec.experiment import (
    Cifar10,
    CitationGraph,
    Experiment,
    SyntheticCifar10,
    SyntheticCitation,
)

Tally = dict[str, tuple[float, float]]
"""A metric's sum and what it is divided by, both added over replicas."""


@dataclass(frozen=True)
class Batch:
    """One replica's mini-batch on this rank; what the rank does not need is none."""

    epoch: int
    inputs: Tensor | None
    targets: Tensor | None
    samples: int
    sample_ids: np.ndarray[Any, np.dtype[np.int64]]
    checksum: int
    waited_s: float


class Workload(Protocol):
    """The data of one replica, by phase and step."""

    contexts: list[Context]
    loss: Loss
    samples: int
    """A replica's, a step."""
    total_samples: int
    """Of the training data, to count what was seen."""

    def shape_after(self, index: int) -> tuple[int, ...]:
        """Of one micro-batch's activation after layer `index`; -1 is the input."""
        ...

    def example(self) -> Tensor: ...

    def open(self, phase: Phase, start: int, stop: int) -> contextlib.AbstractContextManager[Any]:
        """An iterator over the batches of steps `start` to `stop`."""
        ...

    def metrics(self, phase: Phase) -> tuple[str, ...]: ...

    def tally(self, phase: Phase, outputs: Tensor, batch: Batch) -> Tally: ...

    def graph_facts(self) -> dict[str, Any]: ...


def build_workload(
    experiment: Experiment, outlines: tuple[LayerOutline, ...], mesh: Mesh, root: Path | None
) -> Workload:
    """Load the data of this rank; raises InputError for what is missing or damaged."""
    if experiment.data.facts().kind == "images":
        return ImageWorkload(experiment, outlines, mesh, root)
    return GraphWorkload(experiment, outlines, mesh, root)


class ImageWorkload:
    """Images dealt to replicas by a permutation that all ranks know."""

    def __init__(
        self,
        experiment: Experiment,
        outlines: tuple[LayerOutline, ...],
        mesh: Mesh,
        root: Path | None,
    ) -> None:
        data = experiment.data
        assert isinstance(data, Cifar10 | SyntheticCifar10)
        assert experiment.batch_size is not None
        self.experiment = experiment
        self.outlines = outlines
        self.mesh = mesh
        self.images: dict[Split, Images] = {"train": load_images(data, root, "train")}
        if experiment.test_steps:
            self.images["test"] = load_images(data, root, "test")
        self.samples = experiment.batch_size
        self.total_samples = len(self.images["train"])
        replicas = mesh.layout.replicas
        for split, images in self.images.items():
            check_batch(images, self.samples, replicas, split)
        self.loss = Loss("logits", self.samples * replicas, replicas)
        self.contexts = [
            Context(microbatch=m, seed=experiment.seed) for m in range(experiment.microbatches)
        ]
        self.dtype: torch.dtype = getattr(torch, experiment.dtype)

    def shape_after(self, index: int) -> tuple[int, ...]:
        rows = self.samples // self.experiment.microbatches
        layer = self.outlines[max(index, 0)]
        return (rows, *(layer.inputs if index < 0 else layer.shape))

    def example(self) -> Tensor:
        return torch.zeros(self.shape_after(-1), dtype=self.dtype, device=self.mesh.device)

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        with ImageLoader(
            self.images[phase],
            batch_size=self.samples,
            replicas=self.mesh.layout.replicas,
            replica=self.mesh.replica,
            seed=self.experiment.seed,
            start=start,
            stop=stop,
            dtype=self.dtype,
            pixels=self.mesh.is_first,
            pin_memory=self.mesh.device.type == "cuda",
        ) as loader:
            yield self._batches(loader)

    def _batches(self, loader: ImageLoader) -> Iterator[Batch]:
        device = self.mesh.device
        for loaded in loader:
            pixels = loaded.pixels
            yield Batch(
                epoch=loaded.epoch,
                inputs=None if pixels is None else pixels.to(device, non_blocking=True),
                targets=loaded.labels.to(device) if self.mesh.is_last else None,
                samples=self.samples,
                sample_ids=loaded.indices,
                checksum=loaded.checksum,
                waited_s=loader.waited_s,
            )

    def metrics(self, phase: Phase) -> tuple[str, ...]:
        return ("loss", "accuracy")

    def tally(self, phase: Phase, outputs: Tensor, batch: Batch) -> Tally:
        assert batch.targets is not None
        count = float(len(batch.targets))
        loss = float(self.loss.summed(outputs, batch.targets))
        right = float((outputs.argmax(-1) == batch.targets).sum())
        return {"loss": (loss, count), "accuracy": (right, count)}

    def graph_facts(self) -> dict[str, Any]:
        return {}


@dataclass
class GraphWorkload:
    """A graph cut into one chunk for each micro-batch of each replica; a step is all of it."""

    experiment: Experiment
    outlines: tuple[LayerOutline, ...]
    mesh: Mesh
    root: Path | None
    chunkset: ChunkSet = field(init=False)

    def __post_init__(self) -> None:
        experiment, mesh = self.experiment, self.mesh
        data = experiment.data
        assert isinstance(data, CitationGraph | SyntheticCitation)
        graph = load_graph(data, self.root)
        hops = sum(layer.kind == "attention" for layer in self.outlines)
        self.dtype: torch.dtype = getattr(torch, experiment.dtype)
        self.chunkset = build_chunks(
            graph, experiment.total_chunks, experiment.chunks, hops, dtype=self.dtype
        )
        first = mesh.replica * experiment.microbatches
        self._mine = [
            chunk.to(mesh.device)
            for chunk in self.chunkset.chunks[first : first + experiment.microbatches]
        ]
        self.contexts = [
            Context(microbatch=m, graph=chunk, seed=experiment.seed)
            for m, chunk in enumerate(self._mine)
        ]
        self.samples = sum(chunk.own for chunk in self._mine)
        self.total_samples = len(graph.labels)
        labelled = int(graph.masks["train"].sum())
        self.loss = Loss("log_probabilities", labelled, mesh.layout.replicas)
        self._targets = {
            split: torch.cat([chunk.targets[split] for chunk in self._mine])
            for split in ("train", "val", "test")
        }
        # A few of many nodes have a label to learn: 60 of PubMed's 19,717.
        self._labelled = {
            split: (rows := (targets != IGNORED).nonzero().flatten(), targets[rows])
            for split, targets in self._targets.items()
        }
        self._nodes = torch.cat([chunk.nodes for chunk in self._mine])

    def shape_after(self, index: int) -> tuple[int, ...]:
        attentions = sum(layer.kind == "attention" for layer in self.outlines[: index + 1])
        rows = self.chunkset.rows[attentions]
        return (rows,) if index < 0 else (rows, *self.outlines[index].shape)

    def example(self) -> Tensor:
        return self._mine[0].nodes

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        yield (self._batch(step) for step in range(start, stop))

    def _batch(self, step: int) -> Batch:
        return Batch(
            epoch=step,
            inputs=self._nodes if self.mesh.is_first else None,
            targets=self._targets["train"] if self.mesh.is_last else None,
            samples=self.samples,
            sample_ids=np.empty(0, dtype=np.int64),
            checksum=self._checksum,
            waited_s=0.0,
        )

    @property
    def _checksum(self) -> int:
        if not hasattr(self, "_sum"):
            weights = torch.arange(1, len(self._nodes) + 1, device=self._nodes.device)
            self._sum = int(((self._nodes + 2) * (weights % 65_521)).sum()) % (1 << 32)
        return self._sum

    def metrics(self, phase: Phase) -> tuple[str, ...]:
        if phase == "train":
            return ("loss", "accuracy")
        return ("loss", "accuracy", "val_accuracy", "test_accuracy")

    def tally(self, phase: Phase, outputs: Tensor, batch: Batch) -> Tally:
        """In the test phase `loss` and `accuracy` are the test nodes'."""
        split = "train" if phase == "train" else "test"
        rows, targets = self._labelled[split]
        loss = float(self.loss.summed(outputs[rows], targets))
        tally = {"loss": (loss, float(len(rows))), "accuracy": self._accuracy(outputs, split)}
        if phase == "test":
            tally["val_accuracy"] = self._accuracy(outputs, "val")
            tally["test_accuracy"] = tally["accuracy"]
        return tally

    def _accuracy(self, outputs: Tensor, split: str) -> tuple[float, float]:
        rows, targets = self._labelled[split]
        return float((outputs[rows].argmax(-1) == targets).sum()), float(len(rows))

    def graph_facts(self) -> dict[str, Any]:
        chunkset = self.chunkset
        return {
            "mode": chunkset.mode,
            "chunks": len(chunkset.chunks),
            "edges_kept": chunkset.edges_kept,
            "node_redundancy": chunkset.node_redundancy,
            "edge_redundancy": chunkset.edge_redundancy,
            "rows": list(chunkset.rows),
            "own": [chunk.own for chunk in chunkset.chunks],
        }
