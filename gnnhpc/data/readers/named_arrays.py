"""The arrays of a custom graph's .npz file by name, each in its form; a mistake is one line."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gnnhpc.core.dataset_sizes import SPLITS
from gnnhpc.core.errors import InputError
from gnnhpc.data.splits import Mask

_WRITTEN = "a file written by numpy.savez"


class Form(NamedTuple):
    """The form of an array."""

    kinds: str
    """numpy's letters for the kinds of numbers."""
    dimensions: tuple[int, ...]
    text: str


FORMS = {
    "edge_index": Form("iu", (2,), "int [2, edges], at least one edge"),
    "edge_weight": Form("fiub", (1, 2), "float [edges], from 0; or ignore: [edge_weight]"),
    "adj_indptr": Form("iu", (1,), "int [nodes + 1]"),
    "adj_indices": Form("iu", (1,), "int [edges]"),
    "x": Form("fiub", (2,), "numbers [nodes, features], or x_indptr, x_indices, x_data, x_shape"),
    "x_indptr": Form("iu", (1,), "int [nodes + 1]"),
    "x_indices": Form("iu", (1,), "int [n]"),
    "x_data": Form("fiub", (1,), "numbers [n]"),
    "x_shape": Form("iu", (1,), "int [2]: nodes, features"),
    "y": Form("iuf", (1, 2), "int [nodes], -1 or NaN for a node outside of all splits"),
}
for _split in SPLITS:
    _text = f"bool [nodes] or [nodes, splits], or {_split}_idx: int [n]"
    FORMS[f"{_split}_mask"] = Form("biu", (1, 2), _text)
    FORMS[f"{_split}_idx"] = Form("iu", (1,), "int [n], node numbers")

_GNN_BENCHMARK = {
    "y": "labels",
    "x": "attr_matrix",
    "edge_weight": "adj_data",
    **{f"x_{part}": f"attr_{part}" for part in ("indptr", "indices", "data", "shape")},
}
"""The names in gnn-benchmark's files for ours."""


class NamedArrays:
    """Raises InputError for a file that is missing, damaged or no .npz."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = np.load(path, allow_pickle=False)
            self._names = list(self._file.files)
        except OSError as error:
            raise InputError(path, None, error.strerror or str(error), _WRITTEN) from None
        except (zipfile.BadZipFile, ValueError, EOFError, AttributeError):
            raise InputError(path, None, "no .npz file", _WRITTEN) from None
        self.is_gnn_benchmark = "adj_indptr" in self._names and "edge_index" not in self._names

    def _name(self, key: str) -> str:
        """The file's name for ours."""
        return _GNN_BENCHMARK.get(key, key) if self.is_gnn_benchmark else key

    def __contains__(self, key: str) -> bool:
        return self._name(key) in self._names

    def __getitem__(self, key: str) -> npt.NDArray[Any]:
        """An array in its form; raises InputError for one that is missing or has another."""
        form = FORMS[key]
        if key not in self:
            found = f"no {self._name(key)} among {', '.join(sorted(self._names)) or 'no arrays'}"
            raise InputError(self._path, None, found, f"{self._name(key)}: {form.text}")
        try:
            array: npt.NDArray[Any] = self._file[self._name(key)]
        except Exception as error:
            # A damaged archive can fail anywhere in zipfile, zlib or numpy.
            found = f"a damaged array ({error or type(error).__name__})"
            raise self.error(key, found, _WRITTEN) from None
        if array.dtype.kind not in form.kinds or array.ndim not in form.dimensions:
            raise self.wrong_form(key, array)
        return array

    def error(self, key: str, found: object, allowed: str) -> InputError:
        return InputError(self._path, self._name(key), found, allowed)

    def wrong_form(self, key: str, array: npt.NDArray[Any]) -> InputError:
        return self.error(key, f"{array.dtype} {list(array.shape)}", FORMS[key].text)

    def refuse(self, key: str, wrong: Mask, found: Callable[[int], str], allowed: str) -> None:
        """Raise InputError for the first place where `wrong` is true, which `found` describes."""
        if wrong.any():
            raise self.error(key, found(int(wrong.argmax())), allowed)
