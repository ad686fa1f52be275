"""Mini-batches of images: each replica takes its part of a permutation that all ranks compute."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Batches, BatchPlan, MicroBatch
from gnnhpc.batches.prefetch import Ring, prefetched
from gnnhpc.batches.shuffle import permutation
from gnnhpc.data.cifar10_images import Images, Indices, Split, load_images
from gnnhpc.graphs.device_copies import moved
from gnnhpc.kernels.sample_neighbors import Memory
from gnnhpc.records.schema import Phase

_CHECKSUM_STRIDE = 8
_BUFFERS = 3
"""One is loaded, one waits or is computed with, and the loop holds the last one a little longer."""


def epoch_indices(
    samples: int, batch_size: int, replicas: int, replica: int, seed: int, step: int
) -> tuple[int, Indices]:
    """The epoch of a step, and the sample numbers int64 [batch_size] of one replica's mini-batch.

    An epoch is one permutation of all samples, cut into global mini-batches, each cut into one part
    for each replica. The samples after the last whole global mini-batch are left out.
    """
    together = batch_size * replicas
    epoch, number = divmod(step, samples // together)
    first = number * together + replica * batch_size
    return epoch, permutation(samples, seed, epoch)[first : first + batch_size].copy()


def content_checksum(images: Images, indices: Indices) -> int:
    """CRC-32 of the labels and of every eighth pixel of the images with these numbers."""
    labels = zlib.crc32(images.labels[indices].tobytes())
    return zlib.crc32(images.take(indices, _CHECKSUM_STRIDE).tobytes(), labels)


@dataclass(frozen=True)
class LoadedImages:
    """One replica's mini-batch in the host's memory."""

    step: int
    epoch: int
    indices: Indices
    """int64 [B], sample numbers in the split."""
    pixels: Tensor | None
    """[B, H*W, channels] in 0..1, for the first stage; None for other stages."""
    labels: Tensor
    """int64 [B], for the stage of the loss."""
    checksum: int
    """Checksum of labels and pixels; equal on all stages."""


class ImageBatches(Batches):
    """Raises InputError for images that are missing, damaged or too few.

    `images` are those of each split where they are loaded already.
    """

    def __init__(self, plan: BatchPlan, images: Mapping[Split, Images] | None = None) -> None:
        experiment, replicas = plan.experiment, plan.mesh.layout.replicas
        assert experiment.batch_size is not None
        self.plan = plan
        splits: tuple[Split, ...] = ("train", "test") if experiment.test_steps else ("train",)
        self.images: dict[Split, Images] = {
            split: images[split] if images else load_images(experiment.data, plan.root, split)
            for split in splits
        }
        self.samples = experiment.batch_size
        for split, found in self.images.items():
            self.check_enough(len(found), f"{split} images that are there")
        self.total_samples = len(self.images["train"])
        self.steps_per_epoch = self.total_samples // (self.samples * replicas)
        self.rows = self.samples // experiment.microbatches

    def shape_after(self, index: int) -> tuple[int, ...]:
        return self.plan.shape_after(index, self.rows)

    def example(self) -> MicroBatch:
        device = self.plan.mesh.device
        inputs = torch.zeros(self.shape_after(-1), dtype=self.plan.dtype, device=device)
        targets = torch.zeros(self.rows, dtype=torch.int64, device=device)
        return MicroBatch(inputs, {"train": targets}, self.plan.context(0, 0))

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        """A thread loads the next mini-batch while one is in use."""
        ring = Ring(_BUFFERS, pinned=self.plan.mesh.device.type == "cuda")

        def load(step: int) -> LoadedImages:
            return self.load(phase, step, ring.lend())

        with prefetched(load, range(start, stop), 1) as all_loaded:
            yield (self._batch(phase, loaded) for loaded in all_loaded)

    def load(self, phase: Phase, step: int, memory: Memory) -> LoadedImages:
        """Load one mini-batch by numpy alone: torch's threads belong to the training."""
        mesh, images, seed = self.plan.mesh, self.images[phase], self.plan.experiment.seed
        shares = (self.samples, mesh.layout.replicas, mesh.replica, seed)
        epoch, indices = epoch_indices(len(images), *shares, step)
        pixels = None
        if mesh.is_first:
            channels, height, width = images.image_shape
            shape = (self.samples, height * width, channels)
            count = self.samples * height * width * channels
            pixels = memory.empty(count, self.plan.dtype).view(shape)
            images.batch_into(indices, pixels.numpy())
        labels = memory.empty(self.samples, torch.int64)
        labels.numpy()[:] = images.labels[indices]
        checksum = content_checksum(images, indices)
        return LoadedImages(step, epoch, indices, pixels, labels, checksum)

    def _batch(self, phase: Phase, loaded: LoadedImages) -> Batch:
        mesh, count = self.plan.mesh, self.plan.experiment.microbatches
        inputs = [None] * count if loaded.pixels is None else self._split(loaded.pixels)
        targets = self._split(loaded.labels) if mesh.has_loss else None
        return Batch(
            microbatches=tuple(
                MicroBatch(
                    inputs[m],
                    {} if targets is None else {phase: targets[m]},
                    self.plan.context(m, loaded.step),
                )
                for m in range(count)
            ),
            valid_targets=self.samples * mesh.layout.replicas,
            samples=self.samples,
            epoch=loaded.epoch,
            sample_ids=loaded.indices,
            checksum=loaded.checksum,
        )

    def _split(self, rows: Tensor) -> list[Any]:
        return list(moved(rows, self.plan.mesh.device).split(self.rows))
