"""CIFAR-10 in its two published layouts, and images as every loader gives them.

https://www.cs.toronto.edu/~kriz/cifar.html describes the files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.core.errors import GnnhpcError, InputError
from gnnhpc.data.data_files import existing_root
from gnnhpc.data.data_settings import (
    CIFAR_ARCHIVE,
    CIFAR_FOLDERS,
    Data,
    SyntheticCifar10,
    cifar_files,
    cifar_paths,
)
from gnnhpc.data.download import get_data
from gnnhpc.data.readers.safe_pickle import read_arrays
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

    @property
    def pixels(self) -> Pixels:
        """All images, uint8 [N, channels, H, W]; a copy where there are several parts."""
        return self.parts[0] if len(self.parts) == 1 else np.concatenate(self.parts)

    def take(self, indices: Indices, stride: int = 1) -> Pixels:
        """Images by number, uint8 [B, channels, H/stride, W/stride], every stride-th pixel."""
        channels, height, width = self.image_shape
        taken = np.empty(
            (len(indices), channels, -(-height // stride), -(-width // stride)), dtype=np.uint8
        )
        first = 0
        for part in self.parts:
            here = np.flatnonzero((indices >= first) & (indices < first + len(part)))
            taken[here] = part[:, :, ::stride, ::stride][indices[here] - first]
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

    def batch(self, indices: Indices, dtype: torch.dtype = torch.float32) -> Tensor:
        """Images by number as nodes: [B, H*W, channels] in 0..1, node = row * W + column."""
        channels, height, width = self.image_shape
        nodes = torch.empty((len(indices), height * width, channels), dtype=dtype)
        self.batch_into(indices, nodes.numpy())
        return nodes


def load_images(config: Data, root: Path | None, split: Split) -> Images:
    """Load the images of a split; CIFAR-10 is downloaded into `root` first where it is absent.

    There may be fewer files than were published. Raises InputError for a missing or damaged file.
    """
    if isinstance(config, SyntheticCifar10):
        pixels, labels = synthetic_images(config, split)
        return Images((pixels,), labels, config.classes)
    folder = _cifar_folder(config, existing_root(config.name, root))
    paths = cifar_files(folder, split)
    if not paths:
        first = cifar_paths(folder, split)[0]
        raise InputError(first, None, "no such file", f"the files of {CIFAR_ARCHIVE.url}")
    read = _read_binary if folder.name == CIFAR_FOLDERS["binary"] else _read_python
    parts, labels_of_parts = zip(*(read(path) for path in paths), strict=True)
    return Images(parts, np.concatenate(labels_of_parts), _CLASSES)


def _cifar_folder(config: Data, root: Path) -> Path:
    config.check(root)
    for name in CIFAR_FOLDERS.values():
        if cifar_files(root / name, "train"):
            return root / name
    folder = root / CIFAR_FOLDERS["binary"]
    try:
        get_data(config, root)
    except GnnhpcError as error:
        allowed = f"the files of {CIFAR_ARCHIVE.url}"
        raise InputError(folder, None, f"no such folder, and {error}", allowed) from None
    return folder


def _read_binary(path: Path) -> tuple[Pixels, Indices]:
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
    _check_labels(path, labels)
    return records[:, 1:].reshape(-1, *_SHAPE).view(np.ndarray), labels


def _read_python(path: Path) -> tuple[Pixels, Indices]:
    """A pickled dict: `data`, uint8 [n, 3072], and `labels`, a list of n integers."""
    content = read_arrays(path, encoding="bytes")
    try:
        pixels, labels = np.asarray(content[b"data"]), np.asarray(content[b"labels"], np.int64)
    except (KeyError, TypeError, ValueError):
        raise InputError(path, None, "no data and labels", f"both; {_FETCH_AGAIN}") from None
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _RECORD - 1) or not len(labels):
        found = f"{pixels.dtype} {list(pixels.shape)} for {len(labels)} labels"
        raise InputError(path, "data", found, f"uint8 [labels, {_RECORD - 1}]; {_FETCH_AGAIN}")
    _check_labels(path, labels)
    return pixels.reshape(-1, *_SHAPE), labels


def _check_labels(path: Path, labels: Indices) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= _CLASSES))
    if len(wrong):
        where, allowed = f"label of image {wrong[0]}", f"0 to {_CLASSES - 1}; {_FETCH_AGAIN}"
        raise InputError(path, where, int(labels[wrong[0]]), allowed)
