"""Holds the images and labels that a stage is given against a second reading of the raw data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs
from gnnhpc.check.plain.images import PlainImages, plain_images
from gnnhpc.check.plain.order import Ids, PlainOrder
from gnnhpc.check.watches.chunk_edges import ChunkCounts
from gnnhpc.check.watches.data_watch import WatchedKind
from gnnhpc.check.watches.findings import Findings
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Phase

ROWS = 64
"""Images of a mini-batch that are read again, from all of its micro-batches."""
FEW_ROWS = 4
"""The same, in steps that are not looked at."""
Pixels = npt.NDArray[Any]


@dataclass
class _Split:
    images: PlainImages
    order: PlainOrder


@dataclass
class ImageWatch:
    """Of one replica's mini-batches, on whichever of its stages this rank holds."""

    kind: ClassVar[WatchedKind] = "images"
    experiment: Experiment
    mesh: Mesh
    root: Path | None
    findings: Findings
    total_samples: int
    """Of the training split, as the batches count them."""
    _splits: dict[Phase, _Split] = field(default_factory=dict)
    _order: PlainOrder | None = None

    @property
    def chunks(self) -> Mapping[int, ChunkCounts]:
        return {}

    @property
    def nodes_and_edges(self) -> tuple[int, int]:
        return 0, 0

    @property
    def facts(self) -> Mapping[str, int]:
        return {}

    @property
    def evaluated(self) -> bytes | None:
        return None

    def check_order(self, step: int, batch: Batch) -> None:
        """In every training step: the samples are those that the documented rule names."""
        if self._order is None:
            self._order = self._plain_order(self.total_samples)
        self._check_order("train", step, step, batch, self._order)

    def _check_order(
        self, phase: Phase, step: int, number: int, batch: Batch, order: PlainOrder
    ) -> None:
        self.findings.looks["order"] += 1
        if not np.array_equal(batch.sample_ids, order.ids(number)):
            cause = order.explain(number, np.asarray(batch.sample_ids))
            self.findings.add("order", phase, step, cause)

    def _ids(self, phase: Phase, number: int, batch: Batch) -> Ids:
        """Whose pixels and labels a mini-batch must hold: where its samples are not those of the
        rule, which the order's check says, it is judged by the samples that it says it has."""
        order, told = self._split(phase).order, np.asarray(batch.sample_ids)
        usable = len(told) == batch.samples and ((told >= 0) & (told < order.samples)).all()
        return told if usable else order.ids(number)

    def before(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """Before step `number` of its phase (of its evaluation): what the engine will be given."""
        inputs = [m.inputs for m in batch.microbatches if m.inputs is not None]
        rows = {len(rows) for rows in inputs} | {
            len(t) for m in batch.microbatches for t in m.targets.values()
        }
        # The engine refuses an uneven batch itself, and says so better.
        if rows <= {batch.samples // self.experiment.microbatches}:
            if phase == "test":
                self._check_order(phase, step, number, batch, self._split(phase).order)
            self._compare(phase, step, number, inputs, batch)

    def after(
        self,
        phase: Phase,
        step: int,
        number: int,
        batch: Batch,
        given: list[tuple[Inputs, Context]],
    ) -> None:
        """After it: the very tensors that the first stage's forward was given."""
        if self.mesh.is_first:
            self._compare(phase, step, number, [x for x, _ in given], batch)

    def check_cheaply(self, phase: Phase, step: int, number: int, batch: Batch) -> None:
        """After a step; the loader has not overwritten it yet."""
        if phase == "test":
            self._check_order(phase, step, number, batch, self._split(phase).order)
        inputs = [m.inputs for m in batch.microbatches if m.inputs is not None]
        self._compare(phase, step, number, inputs, batch, FEW_ROWS)

    def labels(self, phase: Phase, split: str, number: int, batch: Batch) -> list[Ids]:
        """The labels of each micro-batch as read again."""
        return np.split(self._labels(phase, self._ids(phase, number, batch)), self._pieces)

    def labelled(self, phase: Phase, number: int) -> int:
        """Every image has a label."""
        assert self.experiment.batch_size is not None
        return self.experiment.batch_size * self.experiment.layout.replicas

    @property
    def _pieces(self) -> int:
        return self.experiment.microbatches

    def _labels(self, phase: Phase, ids: Ids) -> Ids:
        images = self._split(phase).images
        return np.array([images.label(int(n)) for n in ids], dtype=np.int64)

    def _compare(
        self,
        phase: Phase,
        step: int,
        number: int,
        inputs: list[Inputs],
        batch: Batch,
        rows_read: int = ROWS,
    ) -> None:
        split = self._split(phase)
        ids = self._ids(phase, number, batch)
        places = self._places(ids, split.images, rows_read)
        if self.mesh.is_first and len(places):
            self.findings.looks["inputs"] += 1
            rows = len(ids) // self._pieces
            wanted = self._pixels(split.images, ids[places])
            found = np.stack([_row(inputs[p // rows], p % rows) for p in places])
            if not np.array_equal(found, wanted):
                cause = self._explain_pixels(phase, number, ids, places, found)
                self.findings.add("inputs", phase, step, cause)
        if self.mesh.has_loss:
            self.findings.looks["targets"] += 1
            targets = [m.targets[phase] for m in batch.microbatches]
            told = np.concatenate([t.detach().to("cpu").numpy() for t in targets])
            if not np.array_equal(told, self._labels(phase, ids)):
                cause = self._explain_labels(phase, number, ids, told)
                self.findings.add("targets", phase, step, cause)

    @staticmethod
    def _places(ids: Ids, images: PlainImages, count: int) -> Ids:
        """Places in the mini-batch that are looked at, spread over it."""
        known = np.flatnonzero(ids < images.readable)
        return known[:: max(1, -(-len(known) // count))]

    def _pixels(self, images: PlainImages, ids: Ids) -> Pixels:
        """[n, H*W, 3] in 0..1, in the experiment's precision."""
        dtype = np.dtype(self.experiment.dtype)
        return np.stack([images.pixels(int(n)).astype(dtype) / dtype.type(255) for n in ids])

    def _explain_pixels(
        self, phase: Phase, number: int, ids: Ids, places: Ids, found: Pixels
    ) -> str:
        split = self._split(phase)
        wanted = self._pixels(split.images, ids[places])
        wrong = np.flatnonzero((found != wanted).any(axis=(1, 2)))
        first, place = int(wrong[0]), int(places[wrong[0]])
        told = f"{len(wrong)} of {len(places)} images differ from the raw data:"
        for other, what in self._other_ids(phase, number):
            if self._is_image(split.images, int(other[place]), found[first]):
                return f"{told} they are those of {what}"
        for neighbour, name in self._others(phase):
            if self._is_image(neighbour.images, int(ids[place]), found[first]):
                return f"{told} they are of the {name} split"
        for n in np.flatnonzero(ids < split.images.readable):
            if self._is_image(split.images, int(ids[n]), found[first]):
                shift = (place - int(n)) % len(ids)
                return f"{told} they are shifted by {shift} places against the samples' order"
        ratio = float(found[first].sum() / max(float(wanted[first].sum()), 1e-30))
        if np.allclose(found[first], ratio * wanted[first], rtol=1e-5, atol=1e-6):
            return f"{told} they are scaled by {ratio:.4g}"
        if np.array_equal(np.sort(found[first], axis=None), np.sort(wanted[first], axis=None)):
            return f"{told} pixels or colours are in another order"
        return f"{told} image {ids[place]} at place {place} is another"

    def _explain_labels(self, phase: Phase, number: int, ids: Ids, told: Ids) -> str:
        labels = self._labels(phase, ids)
        said = f"{int((told != labels).sum())} of {len(ids)} labels differ from the raw data:"
        for shift in (1, -1, len(ids) // self._pieces):
            if np.array_equal(told, np.roll(labels, shift)):
                return f"{said} they are shifted by {shift} against the inputs"
        if np.array_equal(told, np.concatenate(np.split(labels, self._pieces)[::-1])):
            return f"{said} micro-batches come in the opposite order"
        higher = np.unique((told - labels) % self.experiment.data.facts().classes)
        if len(higher) == 1:
            return f"{said} every class is {higher[0]} too high"
        for other, what in self._other_ids(phase, number):
            if np.array_equal(told, self._labels(phase, other)):
                return f"{said} they are those of {what}"
        return f"{said} sample {ids[np.argmax(told != labels)]} and others have another class"

    def _other_ids(self, phase: Phase, number: int) -> list[tuple[Ids, str]]:
        order = self._split(phase).order
        found = [(order.ids(number + 1), "the step after")]
        if number:
            found.insert(0, (order.ids(number - 1), "the step before"))
        if number > 1:
            found.append((order.ids(number - 2), "two steps before"))
        return found

    def _others(self, phase: Phase) -> list[tuple[_Split, str]]:
        """The other split, if it is used."""
        other: Phase = "test" if phase == "train" else "train"
        if other == "test" and not self.experiment.test_steps:
            return []
        return [(self._split(other), other)]

    def _is_image(self, images: PlainImages, number: int, found: Pixels) -> bool:
        known = number < images.readable
        return known and np.array_equal(self._pixels(images, np.array([number]))[0], found)

    def _split(self, phase: Phase) -> _Split:
        if phase not in self._splits:
            images = plain_images(self.experiment.data, self.root, phase)
            self._splits[phase] = _Split(images, self._plain_order(images.samples))
        return self._splits[phase]

    def _plain_order(self, samples: int) -> PlainOrder:
        experiment = self.experiment
        assert experiment.batch_size is not None
        return PlainOrder(
            samples,
            experiment.batch_size,
            experiment.layout.replicas,
            self.mesh.replica,
            experiment.seed,
        )


def _row(inputs: Inputs, place: int) -> Pixels:
    assert isinstance(inputs, Tensor)
    found: Pixels = inputs[place].detach().to("cpu").numpy()
    return found
