"""An .npz file read array by array, with every failure as one line. Free of torch."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from gnnhpc.core.errors import InputError

_HOW = "a file written by numpy.savez"


@dataclass(frozen=True)
class Header:
    """What an array is, known without reading it."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


class NpzFile:
    """The arrays of a file, by name; headers are read at once, arrays when they are asked for.

    Raises InputError for a file that is missing, no .npz, damaged, or holds pickled objects.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if name.endswith(".npy")]
                headers = {name: self._read(archive, name) for name in names}
        except FileNotFoundError:
            raise InputError(path, None, "no such file", _HOW) from None
        except OSError as error:
            raise InputError(path, None, error.strerror or str(error), _HOW) from None
        except zipfile.BadZipFile:
            raise InputError(path, None, "no .npz file", _HOW) from None
        self.headers = {name.removesuffix(".npy"): header for name, header in headers.items()}

    def _read(self, archive: zipfile.ZipFile, name: str) -> Header:
        try:
            return _header(archive, name)
        except Exception as error:
            # A damaged archive can fail anywhere in zipfile, zlib or numpy.
            raise self._damaged(name.removesuffix(".npy"), error) from None

    def _damaged(self, key: str, error: Exception) -> InputError:
        reason = str(error) or type(error).__name__
        return InputError(self.path, key, f"a damaged array ({reason})", _HOW)

    def __contains__(self, key: str) -> bool:
        return key in self.headers

    def header(self, key: str, allowed: str) -> Header:
        """Raises InputError for an array that is missing or of Python objects."""
        if key not in self.headers:
            raise InputError(self.path, key, "nothing", allowed)
        header = self.headers[key]
        if header.dtype.hasobject:
            raise InputError(self.path, key, "pickled Python objects", f"{allowed}, no pickle")
        return header

    def array(self, key: str) -> npt.NDArray[Any]:
        """Raises InputError for an array that cannot be read."""
        try:
            with np.load(self.path, allow_pickle=False) as arrays:
                found: npt.NDArray[Any] = arrays[key]
                return found
        except Exception as error:
            raise self._damaged(key, error) from None


def _header(archive: zipfile.ZipFile, name: str) -> Header:
    with archive.open(name) as stream:
        version = npy.read_magic(stream)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(stream)
        return Header(dtype, shape)
