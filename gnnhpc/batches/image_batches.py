"""Mini-batches of images: each replica takes its part of a permutation that all ranks compute."""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

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

        def load(step: int) -> Batch:
            return self._load(phase, step, ring.lend())

        with prefetched(load, range(start, stop), 1) as all_loaded:
            yield map(self._in_microbatches, all_loaded)

    def _load(self, phase: Phase, step: int, memory: Memory) -> Batch:
        """One mini-batch as one micro-batch in the host's memory.

        It is loaded by numpy alone: torch's threads belong to the training.
        """
        mesh, images, experiment = self.plan.mesh, self.images[phase], self.plan.experiment
        replicas = mesh.layout.replicas
        shares = (self.samples, replicas, mesh.replica, experiment.seed)
        epoch, indices = epoch_indices(len(images), *shares, step)
        pixels = None
        if mesh.is_first:
            channels, height, width = images.image_shape
            shape = (self.samples, height * width, channels)
            pixels = memory.empty(math.prod(shape), self.plan.dtype).view(shape)
            images.batch_into(indices, pixels.numpy())
        labels = memory.empty(self.samples, torch.int64)
        labels.numpy()[:] = images.labels[indices]
        targets: dict[str, Tensor] = {phase: labels} if mesh.has_loss else {}
        return Batch(
            microbatches=(MicroBatch(pixels, targets, self.plan.context(0, step)),),
            valid_targets=self.samples * replicas,
            samples=self.samples,
            epoch=epoch,
            sample_ids=indices,
            checksum=content_checksum(images, indices),
        )

    def _in_microbatches(self, batch: Batch) -> Batch:
        """A loaded mini-batch on the device, whose current stream copies it at once."""
        (whole,) = batch.microbatches
        device, count = self.plan.mesh.device, self.plan.experiment.microbatches
        inputs: Sequence[Tensor | None] = [None] * count
        if isinstance(whole.inputs, Tensor):
            inputs = moved(whole.inputs, device).split(self.rows)
        targets = {name: moved(y, device).split(self.rows) for name, y in whole.targets.items()}
        microbatches = tuple(
            MicroBatch(
                inputs[m],
                {name: parts[m] for name, parts in targets.items()},
                self.plan.context(m, whole.context.step),
            )
            for m in range(count)
        )
        return replace(batch, microbatches=microbatches)
