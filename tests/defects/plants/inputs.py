"""Inputs and labels: wrong, shifted, stale, in code that both stages share too."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.image_loader import ImageLoader
from gnnhpc.data import graphs as graph_data
from gnnhpc.data import images as image_data
from gnnhpc.data.images import Images
from gnnhpc.graphs import features
from gnnhpc.graphs.graph import Graph
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, is_unseen, rank

KIND = "inputs and labels"
defect = functools.partial(planted, kind=KIND)


@defect("labels rolled in the loader", setting=settings.VIG)
def rolled() -> None:
    def fill(true: Any, loader: ImageLoader, step: int, buffers: Any) -> Any:
        loaded = true(loader, step, buffers)
        buffers.labels.numpy()[:] = np.roll(buffers.labels.numpy(), 1)
        return loaded

    around(ImageLoader, "_fill", fill)


@defect("labels rolled in the loader, later in the run", setting=settings.VIG)
def rolled_late() -> None:
    def fill(true: Any, loader: ImageLoader, step: int, buffers: Any) -> Any:
        loaded = true(loader, step, buffers)
        if step >= 4:
            buffers.labels.numpy()[:] = np.roll(buffers.labels.numpy(), 1)
        return loaded

    around(ImageLoader, "_fill", fill)


@defect("labels rolled where no look was drawn", setting=settings.VIG_LONG_EPOCH)
def rolled_unseen() -> None:
    def step(true: Any, trainer: Trainer, number: int, batch: Batch) -> Any:
        if is_unseen(trainer.experiment, number):
            for microbatch in batch.microbatches:
                labels = microbatch.targets["train"]
                labels.copy_(labels.roll(1))
        return true(trainer, number, batch)

    around(Trainer, "_train_step", step)


@defect("labels of the next mini-batch", setting=settings.VIG)
def next_labels() -> None:
    def fill(true: Any, loader: ImageLoader, step: int, buffers: Any) -> Any:
        loaded = true(loader, step, buffers)
        buffers.labels.numpy()[:] = loader._images.labels[loader._part(step + 1)[1]]
        return loaded

    around(ImageLoader, "_fill", fill)


@defect("images of the mini-batch before", setting=settings.VIG)
def stale_images() -> None:
    held: dict[int, Tensor] = {}

    def fill(true: Any, loader: ImageLoader, step: int, buffers: Any) -> Any:
        loaded = true(loader, step, buffers)
        if buffers.pixels is not None:
            before = held.get(id(loader), buffers.pixels)
            held[id(loader)] = buffers.pixels.clone()
            buffers.pixels.copy_(before)
        return loaded

    around(ImageLoader, "_fill", fill)


@defect("one buffer for two mini-batches", setting=settings.VIG)
def one_buffer() -> None:
    """The loader fills the next mini-batch into the memory of the one in use."""

    def fill(true: Any, loader: ImageLoader, step: int, buffers: Any) -> Any:
        loaded = true(loader, step, buffers)
        if step + 1 < loader._steps.stop:
            true(loader, step + 1, buffers)
        return loaded

    around(ImageLoader, "_fill", fill)


@defect("labels shuffled apart from images", setting=settings.VIG)
def mismatched() -> None:
    """Raffi 3: each rank shuffles on its own."""

    def shuffled(true: Any, batches: ImageBatches, *args: Any) -> Any:
        plan = batches.plan
        own = plan.experiment.model_copy(update={"seed": plan.experiment.seed + plan.mesh.rank})
        other = object.__new__(type(batches))
        other.__dict__ = batches.__dict__ | {"plan": dataclasses.replace(plan, experiment=own)}
        return true(other, *args)

    around(ImageBatches, "open", shuffled)


@defect("colours swapped where all ranks take images", setting=settings.VIG)
def colours() -> None:
    around(Images, "take", lambda true, *args: np.ascontiguousarray(true(*args)[:, ::-1]))


@defect("pixels not scaled to 0..1", setting=settings.VIG)
def unscaled() -> None:
    def whole(true: Any, images: Images, indices: Any, out: Any) -> None:
        true(images, indices, out)
        out *= 255

    around(Images, "batch_into", whole)


@defect("rows and columns of images swapped", setting=settings.VIG)
def transposed() -> None:
    around(
        Images, "take", lambda true, *args: np.ascontiguousarray(true(*args).transpose(0, 1, 3, 2))
    )


@defect("labels off by one where all ranks read them", setting=settings.VIG)
def off_by_one() -> None:
    def shifted(true: Any, *args: Any) -> Images:
        images: Images = true(*args)
        return dataclasses.replace(images, labels=(images.labels + 1) % images.classes)

    around(image_data, "load_images", shifted)


@defect("an uneven last mini-batch", setting=settings.VIG)
def uneven() -> None:
    def short(true: Any, batches: ImageBatches, phase: Any, loaded: Any) -> Batch:
        batch: Batch = true(batches, phase, loaded)
        half = batches.rows // 2
        if loaded.step == 0:
            return batch
        return dataclasses.replace(
            batch,
            microbatches=tuple(
                MicroBatch(
                    None if whole.inputs is None else whole.inputs[:half],
                    {split: target[:half] for split, target in whole.targets.items()},
                    whole.context,
                )
                for whole in batch.microbatches
            ),
        )

    around(ImageBatches, "_batch", short)


@defect("micro-batches in another order on the last stage", setting=settings.VIG)
def reordered() -> None:
    def turned(true: Any, batches: ImageBatches, rows: Tensor) -> list[Any]:
        parts: list[Any] = true(batches, rows)
        return parts[::-1] if rank() == 1 else parts

    around(ImageBatches, "_split", turned)


@defect("node labels rolled within a chunk", setting=settings.GAT)
def node_labels() -> None:
    def rolls(true: Any, graph: Any, own: Any, rows: int | None = None) -> Any:
        targets = true(graph, own, rows)
        return {split: torch.roll(labels, 1) for split, labels in targets.items()}

    around(Graph, "targets", rolls)


@defect("node labels of other nodes, later in the run", setting=settings.GAT)
def node_labels_late() -> None:
    def rolls(true: Any, batches: ChunkBatches, phase: Any, step: int) -> Batch:
        batch: Batch = true(batches, phase, step)
        if step < 4 or phase != "train":
            return batch
        return dataclasses.replace(
            batch,
            microbatches=tuple(
                dataclasses.replace(
                    one, targets={s: torch.roll(t, 1) for s, t in one.targets.items()}
                )
                for one in batch.microbatches
            ),
        )

    around(ChunkBatches, "_batch", rolls)


@defect("features of other nodes", setting=settings.GAT)
def node_features() -> None:
    def others(true: Any, stored: Any, nodes: Tensor, dtype: Any) -> Any:
        return true(stored, torch.where(nodes > 0, nodes - 1, nodes), dtype)

    around(features, "feature_rows", others)


@defect("test nodes used for training", setting=settings.GAT)
def leaked() -> None:
    def together(true: Any, *args: Any) -> Any:
        graph = true(*args)
        masks = graph.masks | {"train": graph.masks["train"] | graph.masks["test"]}
        return dataclasses.replace(graph, masks=masks)

    around(graph_data, "load_graph", together)


@defect("evaluated on the training images", setting=settings.VIG)
def tested_on_training() -> None:
    def same(true: Any, config: Any, root: Any, split: str) -> Any:
        return true(config, root, "train")

    around(image_data, "load_images", same)


@defect("noise added to the inputs, later in the run", setting=settings.VIG)
def noisy_inputs() -> None:
    steps = Steps()

    def noise(true: Any, *args: Any) -> Any:
        parts: list[Any] = true(*args)
        if steps.late and parts[0].is_floating_point():
            parts = [part + 0.01 for part in parts]
        return parts

    around(ImageBatches, "_split", noise)
