"""A split's images and labels, read plainly from the published bytes or made by the generator."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnnhpc.check.twin.pieces import Labels, Pixels
from gnnhpc.data.cifar10 import CIFAR_FOLDERS, cifar_files
from gnnhpc.data.generators import synthetic_images
from gnnhpc.data.images import Split
from gnnhpc.data.readers.unpickle import read_arrays
from gnnhpc.data.settings import Data, SyntheticCifar10

_RECORD = 3073
"""A label, then the 32 x 32 pixels of each of three planes; one byte each."""


def raw_images(config: Data, root: Path | None, split: Split) -> tuple[Pixels, Labels]:
    """uint8 [N, channels, H, W] and int64 [N], in the order of the published files."""
    if isinstance(config, SyntheticCifar10):
        return synthetic_images(config, split)
    assert root is not None
    for kind, folder in CIFAR_FOLDERS.items():
        paths = cifar_files(root / folder, split)
        if paths and cifar_files(root / folder, "train"):
            read = _binary if kind == "binary" else _pickled
            pixels, labels = zip(*map(read, paths), strict=True)
            return np.concatenate(pixels), np.concatenate(labels)
    raise FileNotFoundError(f"{root}: no CIFAR-10")


def _binary(path: Path) -> tuple[Pixels, Labels]:
    records = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(-1, _RECORD)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def _pickled(path: Path) -> tuple[Pixels, Labels]:
    content = read_arrays(path, encoding="bytes")
    pixels = np.asarray(content[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32)
    return pixels, np.asarray(content[b"labels"], dtype=np.int64)
