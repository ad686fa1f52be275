"""Reads arrays of an .npz file one by one; every failure is one line."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnhpc.core.errors import InputError
from gnnhpc.data.splits import Mask

_WRITTEN = "a file written by numpy.savez"


class NpzFile:
    """The arrays of an .npz file; `renamed` has the file's keys for ours.

    Raises InputError for a file that is missing, damaged, no .npz, or holds pickled objects.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.renamed: dict[str, str] = {}
        try:
            self._arrays = np.load(path, allow_pickle=False)
            self.keys = list(self._arrays.files)
        except OSError as error:
            raise InputError(path, None, error.strerror or str(error), _WRITTEN) from None
        except (zipfile.BadZipFile, ValueError, EOFError, AttributeError):
            raise InputError(path, None, "no .npz file", _WRITTEN) from None

    def key(self, key: str) -> str:
        """The file's key for ours."""
        return self.renamed.get(key, key)

    def __contains__(self, key: str) -> bool:
        return self.key(key) in self.keys

    def error(self, key: str, found: object, allowed: str) -> InputError:
        return InputError(self.path, self.key(key), found, allowed)

    def refuse(self, key: str, wrong: Mask, found: Callable[[int], str], allowed: str) -> None:
        """Raise InputError for the first place where `wrong` is true, which `found` describes."""
        if wrong.any():
            raise self.error(key, found(int(wrong.argmax())), allowed)

    def shape(self, key: str, kinds: str, dimensions: str, allowed: str) -> tuple[int, ...]:
        """The shape of an array of these kinds of numbers, from its header alone.

        `dimensions` lists how many it may have, as `kinds` lists numpy's letters of kinds.
        """
        self._require(key, allowed)
        try:
            with self._arrays.zip.open(f"{self.key(key)}.npy") as stream:
                first = np.lib.format.read_magic(stream) == (1, 0)
                read = getattr(np.lib.format, f"read_array_header_{1 if first else 2}_0")
                shape, _, dtype = read(stream)
        except Exception as error:
            raise self._damaged(key, error) from None
        self._check(key, shape, dtype, kinds, dimensions, allowed)
        return tuple(shape)

    def read(self, key: str, kinds: str, dimensions: str, allowed: str) -> npt.NDArray[Any]:
        """An array of these kinds of numbers and dimensions."""
        self._require(key, allowed)
        try:
            found: npt.NDArray[Any] = self._arrays[self.key(key)]
        except Exception as error:
            raise self._damaged(key, error) from None
        self._check(key, found.shape, found.dtype, kinds, dimensions, allowed)
        return found

    def _require(self, key: str, allowed: str) -> None:
        if key not in self:
            found = f"no {self.key(key)} among {', '.join(sorted(self.keys)) or 'no arrays'}"
            raise InputError(self.path, None, found, f"{self.key(key)}: {allowed}")

    def _check(
        self, key: str, shape: tuple[int, ...], dtype: Any, kinds: str, dims: str, allowed: str
    ) -> None:
        if dtype.kind not in kinds or str(len(shape)) not in dims:
            raise self.error(key, f"{dtype} {list(shape)}", allowed)

    def _damaged(self, key: str, error: Exception) -> InputError:
        # A damaged archive can fail anywhere in zipfile, zlib or numpy.
        return self.error(key, f"a damaged array ({error or type(error).__name__})", _WRITTEN)
