"""Images read a second time, one by one, from the bytes of the published files or the generator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gnnhpc.data.generators import synthetic_images
from gnnhpc.data.readers.unpickle import read_arrays
from gnnhpc.data.settings import Data, SyntheticCifar10
from gnnhpc.records.schema import Phase

Rows = npt.NDArray[np.uint8]

MADE = 500
"""Images that are made again; as many are the same whatever number of them is made."""
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
    """Images, from the first, that can be read a second time."""

    def image(self, number: int) -> tuple[Rows, int]:
        """Pixels uint8 [H*W, 3], node = row * W + column, and the label."""
        ...


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
        self._files = files
        self._counts = [path.stat().st_size // _RECORD for path in files]
        self.samples = self.readable = sum(self._counts)

    def image(self, number: int) -> tuple[Rows, int]:
        for path, count in zip(self._files, self._counts, strict=True):
            if number < count:
                with path.open("rb") as stream:
                    stream.seek(number * _RECORD)
                    record = stream.read(_RECORD)
                return _nodes(record[1:]), record[0]
            number -= count
        raise ValueError("no such image")


class PickledImages:
    """Dictionaries of `data`, 3,072 bytes an image, and `labels`."""

    def __init__(self, files: Sequence[Path]) -> None:
        contents = [read_arrays(path, encoding="bytes") for path in files]
        self._parts = [(content[b"data"], content[b"labels"]) for content in contents]
        self.samples = self.readable = sum(len(labels) for _, labels in self._parts)

    def image(self, number: int) -> tuple[Rows, int]:
        for pixels, labels in self._parts:
            if number < len(labels):
                return _nodes(bytes(pixels[number])), int(labels[number])
            number -= len(labels)
        raise ValueError("no such image")


class MadeImages:
    """Images of the generator, made a second time."""

    def __init__(self, data: SyntheticCifar10, phase: Phase) -> None:
        self.samples = getattr(data, phase)
        self.readable = min(self.samples, MADE)
        fewer = data.model_copy(update={phase: self.readable})
        self._pixels, self._labels = synthetic_images(fewer, phase)

    def image(self, number: int) -> tuple[Rows, int]:
        planes = self._pixels[number]
        nodes = np.stack([plane.ravel() for plane in planes], axis=1)
        return nodes, int(self._labels[number])


def _nodes(planes: bytes) -> Rows:
    """uint8 [1024, 3] of the red, the green and the blue plane."""
    colours = [planes[start : start + _PLANE] for start in range(0, 3 * _PLANE, _PLANE)]
    return np.stack([np.frombuffer(colour, np.uint8) for colour in colours], axis=1)
