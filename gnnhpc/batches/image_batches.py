"""Batches of images; replicas get different ones, by a permutation that all ranks compute."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.batches.image_loader import ImageLoader, LoadedImages
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.data.images import Images, Split, check_batch, load_images
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase


class ImageBatches:
    """Raises InputError for images that are missing, damaged or too few.

    `images` are those of each split where they are loaded already.
    """

    fixed_rows = True
    drawn = False

    def __init__(self, plan: BatchPlan, images: Mapping[Split, Images] | None = None) -> None:
        experiment, mesh = plan.experiment, plan.mesh
        assert experiment.batch_size is not None
        self.plan = plan
        splits: tuple[Split, ...] = ("train", "test") if experiment.test_steps else ("train",)
        self.images: dict[Split, Images] = {
            split: images[split] if images else load_images(experiment.data, plan.root, split)
            for split in splits
        }
        self.samples = experiment.batch_size
        self.total_samples = len(self.images["train"])
        self.steps_per_epoch = self.total_samples // (self.samples * mesh.layout.replicas)
        self.rows = self.samples // experiment.microbatches
        for split, found in self.images.items():
            check_batch(found, self.samples, mesh.layout.replicas, split)

    def shape_after(self, index: int) -> tuple[int, ...]:
        layer = self.plan.outlines[max(index, 0)]
        return (self.rows, *(layer.inputs if index < 0 else layer.shape))

    def example(self) -> MicroBatch:
        device = self.plan.mesh.device
        inputs = torch.zeros(self.shape_after(-1), dtype=self.plan.dtype, device=device)
        targets = torch.zeros(self.rows, dtype=torch.int64, device=device)
        return MicroBatch(inputs, {"train": targets}, Context(seed=self.plan.experiment.seed))

    @contextlib.contextmanager
    def open(self, phase: Phase, start: int, stop: int) -> Iterator[Iterator[Batch]]:
        mesh = self.plan.mesh
        with ImageLoader(
            self.images[phase],
            batch_size=self.samples,
            replicas=mesh.layout.replicas,
            replica=mesh.replica,
            seed=self.plan.experiment.seed,
            start=start,
            stop=stop,
            dtype=self.plan.dtype,
            pixels=mesh.is_first,
            pin_memory=mesh.device.type == "cuda",
        ) as loader:
            yield (self._batch(phase, loaded) for loaded in loader)

    def _batch(self, phase: Phase, loaded: LoadedImages) -> Batch:
        mesh, count = self.plan.mesh, self.plan.experiment.microbatches
        inputs = [None] * count if loaded.pixels is None else self._split(loaded.pixels)
        targets = self._split(loaded.labels) if mesh.has_loss else None
        return Batch(
            microbatches=tuple(
                MicroBatch(
                    inputs[m],
                    {} if targets is None else {phase: targets[m]},
                    Context(m, loaded.step, self.plan.experiment.seed),
                )
                for m in range(count)
            ),
            labelled=self.samples * mesh.layout.replicas,
            samples=self.samples,
            epoch=loaded.epoch,
            sample_ids=loaded.indices,
            checksum=loaded.checksum,
        )

    def _split(self, rows: torch.Tensor) -> list[Any]:
        return list(rows.to(self.plan.mesh.device, non_blocking=True).split(self.rows))

    def graph_facts(self) -> dict[str, Any]:
        return {}
