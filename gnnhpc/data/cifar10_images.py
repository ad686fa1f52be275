"""CIFAR-10 in its binary layout, and images as every loader gives them.

https://www.cs.toronto.edu/~kriz/cifar.html describes the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from gnnhpc.core.errors import InputError
from gnnhpc.data.data_settings import CIFAR_FILES, Data, SyntheticCifar10
from gnnhpc.data.synthetic.images import synthetic_images

Split = Literal["train", "test"]
Pixels = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]

_SHAPE = (3, 32, 32)
_RECORD = 1 + 3 * 32 * 32
_CLASSES = 10
_FETCH_AGAIN = "delete the file and fetch it again"


@dataclass(frozen=True)
class Images:
    """The images of one split, in the order of their files."""

    parts: tuple[Pixels, ...]
    """uint8 [n, channels, H, W] each, memory-mapped where they come from binary files."""
    labels: Indices
    """int64 [N] over all parts."""
    classes: int

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        _, channels, height, width = self.parts[0].shape
        return channels, height, width

    def take(self, indices: Indices, stride: int = 1) -> Pixels:
        """Images by number, uint8 [B, channels, H/stride, W/stride], every stride-th pixel."""
        channels, height, width = self.image_shape
        taken = np.empty(
            (len(indices), channels, -(-height // stride), -(-width // stride)), dtype=np.uint8
        )
        first = 0
        for part in self.parts:
            mine = np.flatnonzero((indices >= first) & (indices < first + len(part)))
            taken[mine] = part[:, :, ::stride, ::stride][indices[mine] - first]
            first += len(part)
        return taken

    def batch_into(self, indices: Indices, out: npt.NDArray[np.floating[Any]]) -> None:
        """Write images by number as nodes, [B, H*W, channels] in 0..1, into `out`."""
        channels, height, width = self.image_shape
        # A few images at a time stay in cache while they are transposed.
        for start in range(0, len(indices), 32):
            piece = slice(start, start + 32)
            rows = self.take(indices[piece]).reshape(-1, channels, height * width)
            np.divide(rows.transpose(0, 2, 1), out.dtype.type(255), out=out[piece])


def load_images(config: Data, root: Path | None, split: Split) -> Images:
    """Load the images of a split, from the batch files that exist.

    Raises InputError for a missing or damaged file.
    """
    if isinstance(config, SyntheticCifar10):
        pixels, labels = synthetic_images(config, split)
        return Images((pixels,), labels, config.classes)
    paths = [path for path in config.raw_files(root) if path.name in CIFAR_FILES[split]]
    parts, labels_of_parts = zip(*(_read_batch(path) for path in paths), strict=True)
    return Images(parts, np.concatenate(labels_of_parts), _CLASSES)


def _read_batch(path: Path) -> tuple[Pixels, Indices]:
    """Records of a label byte, then the red, green and blue planes, row by row."""
    try:
        size = path.stat().st_size
        if size == 0 or size % _RECORD:
            allowed = f"a whole number of {_RECORD}-byte records; {_FETCH_AGAIN}"
            raise InputError(path, None, f"{size} bytes", allowed)
        records = np.memmap(path, dtype=np.uint8, mode="r").reshape(-1, _RECORD)
    except OSError as error:
        raise InputError(path, None, error.strerror, "a file you may read") from None
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= _CLASSES:
        image = int((labels >= _CLASSES).argmax())
        allowed = f"0 to {_CLASSES - 1}; {_FETCH_AGAIN}"
        raise InputError(path, f"label of image {image}", int(labels[image]), allowed)
    return records[:, 1:].reshape(-1, *_SHAPE).view(np.ndarray), labels
