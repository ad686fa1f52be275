"""Images read a second time, one by one, from the bytes of the published files or the generator."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gnnhpc.data.generators import DATA_SEED, synthetic_images
from gnnhpc.data.readers.unpickle import read_arrays
from gnnhpc.data.settings import Data, SyntheticCifar10
from gnnhpc.records.schema import Phase

Rows = npt.NDArray[np.uint8]

MADE = 500
"""Images that are made again; they are the same whatever number is made."""
_RECORD = 3_073
_PLANE = 1_024
_BATCHES: dict[Phase, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}


class PlainImages(Protocol):
    """The images of one split."""

    samples: int
    readable: int
    """Images, from the first, whose pixels can be read a second time; labels all can."""

    def pixels(self, number: int) -> Rows:
        """uint8 [H*W, 3], node = row * W + column."""
        ...

    def label(self, number: int) -> int: ...


def plain_images(data: Data, root: Path | None, phase: Phase) -> PlainImages:
    """The images of an experiment's data, anew; nothing is read before an image is asked for."""
    if isinstance(data, SyntheticCifar10):
        return MadeImages(data, phase)
    assert root is not None
    folder = root / "cifar-10-batches-bin"
    files = [folder / f"{name}.bin" for name in _BATCHES[phase]]
    if any(path.is_file() for path in _batches(folder, "train", ".bin")):
        return BinaryImages([path for path in files if path.is_file()])
    paths = _batches(root / "cifar-10-batches-py", phase, "")
    return PickledImages([path for path in paths if path.is_file()])


def _batches(folder: Path, phase: Phase, ending: str) -> list[Path]:
    return [folder / f"{name}{ending}" for name in _BATCHES[phase]]


class BinaryImages:
    """Records of a label's byte and three planes of 1,024 bytes, row by row."""

    def __init__(self, files: Sequence[Path]) -> None:
        # Open until the process ends: single bytes are read, a thousand in a look.
        self._files = [os.open(path, os.O_RDONLY) for path in files]
        self._counts = [path.stat().st_size // _RECORD for path in files]
        self.samples = self.readable = sum(self._counts)

    def pixels(self, number: int) -> Rows:
        return _nodes(self._read(number, 1, _RECORD - 1))

    def label(self, number: int) -> int:
        return self._read(number, 0, 1)[0]

    def _read(self, number: int, start: int, length: int) -> bytes:
        """Bytes of a record, counted over all files."""
        for file, count in zip(self._files, self._counts, strict=True):
            if number < count:
                return os.pread(file, length, number * _RECORD + start)
            number -= count
        raise ValueError("no such image")


class PickledImages:
    """Dictionaries of `data`, 3,072 bytes an image, and `labels`."""

    def __init__(self, files: Sequence[Path]) -> None:
        contents = [read_arrays(path, encoding="bytes") for path in files]
        self._pixels = [row for content in contents for row in content[b"data"]]
        self._labels = [label for content in contents for label in content[b"labels"]]
        self.samples = self.readable = len(self._labels)

    def pixels(self, number: int) -> Rows:
        return _nodes(self._pixels[number].tobytes())

    def label(self, number: int) -> int:
        return int(self._labels[number])


class MadeImages:
    """Images of the generator, made a second time: the first ones, as pixels take long.

    Labels come in blocks of 500, each class equally often in one, in an order that is the first
    thing drawn for the block.
    """

    def __init__(self, data: SyntheticCifar10, phase: Phase) -> None:
        self.samples = getattr(data, phase)
        self.readable = min(self.samples, MADE)
        fewer = data.model_copy(update={phase: self.readable})
        self._pixels, _ = synthetic_images(fewer, phase)
        stream = 0 if phase == "train" else 1
        blocks = range(0, self.samples, MADE)
        drawn = [
            np.random.default_rng([DATA_SEED, stream, data.classes, data.image_size, start])
            for start in blocks
        ]
        self._labels = np.concatenate(
            [rng.permutation(np.arange(MADE) % data.classes) for rng in drawn]
        )

    def pixels(self, number: int) -> Rows:
        return np.stack([plane.ravel() for plane in self._pixels[number]], axis=1)

    def label(self, number: int) -> int:
        return int(self._labels[number])


def _nodes(planes: bytes) -> Rows:
    """uint8 [1024, 3] of the red, the green and the blue plane."""
    colours = [planes[start : start + _PLANE] for start in range(0, 3 * _PLANE, _PLANE)]
    return np.stack([np.frombuffer(colour, np.uint8) for colour in colours], axis=1)
