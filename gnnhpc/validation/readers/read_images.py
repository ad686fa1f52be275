"""Independent readers of images: the bytes of the published files, or the generator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnhpc.data.data_files import existing_root
from gnnhpc.data.data_settings import Data, SyntheticCifar10
from gnnhpc.data.readers.safe_pickle import read_arrays
from gnnhpc.data.synthetic.images import synthetic_images
from gnnhpc.records.schema import Phase

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]
_RECORD = 3_073
_SIDE = 32
_FILES: dict[Phase, tuple[str, ...]] = {
    "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test": ("test_batch",),
}


def read_images(data: Data, root: Path | None, split: Phase) -> tuple[Pixels, Labels]:
    """Pixels uint8 [N, 3, H, W] and labels int64 [N] of one split.

    The published files hold records of one byte for the label and three planes of 1,024 bytes, or
    pickled dictionaries of `data` and `labels`. Files that are absent are left out. Raises
    InputError where there is no data root, and OSError for files that cannot be read.
    """
    if isinstance(data, SyntheticCifar10):
        return synthetic_images(data, split)
    folder = existing_root(data.name, root)
    binary, pickled = folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py"
    if any((binary / f"{name}.bin").is_file() for name in _FILES["train"]):
        paths = [binary / f"{name}.bin" for name in _FILES[split]]
        parts = [_read_binary(path) for path in paths if path.is_file()]
    else:
        paths = [pickled / name for name in _FILES[split]]
        parts = [_read_pickled(path) for path in paths if path.is_file()]
    pixels, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return pixels.reshape(-1, 3, _SIDE, _SIDE), labels


def _read_binary(path: Path) -> tuple[Pixels, Labels]:
    records = np.frombuffer(path.read_bytes(), dtype=np.uint8).reshape(-1, _RECORD)
    return records[:, 1:], records[:, 0].astype(np.int64)


def _read_pickled(path: Path) -> tuple[Pixels, Labels]:
    content = read_arrays(path, encoding="bytes")
    return np.asarray(content[b"data"]), np.array(content[b"labels"], dtype=np.int64)
