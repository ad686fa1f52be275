"""Reads published pickles of arrays; a pickle that names anything else is refused."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError

_MULTIARRAY = "numpy._core.multiarray"
_NUMERIC = "numpy._core.numeric"
# The names that a pickle may have, and their places today: numpy's array constructors, the
# byte-string helper of protocol 2, and Planetoid's containers.
_ALLOWED: dict[tuple[str, str], tuple[str, str]] = {
    ("numpy", "ndarray"): ("numpy", "ndarray"),
    ("numpy", "dtype"): ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"): (_MULTIARRAY, "_reconstruct"),
    (_MULTIARRAY, "_reconstruct"): (_MULTIARRAY, "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"): (_NUMERIC, "_frombuffer"),
    (_NUMERIC, "_frombuffer"): (_NUMERIC, "_frombuffer"),
    ("_codecs", "encode"): ("_codecs", "encode"),
}
_ALLOWED_GRAPH: dict[tuple[str, str], tuple[str, str]] = _ALLOWED | {
    ("scipy.sparse.csr", "csr_matrix"): ("scipy.sparse", "csr_matrix"),
    ("scipy.sparse._csr", "csr_matrix"): ("scipy.sparse", "csr_matrix"),
    ("collections", "defaultdict"): ("collections", "defaultdict"),
    ("__builtin__", "list"): ("builtins", "list"),
    ("builtins", "list"): ("builtins", "list"),
}


class _ArraysOnly(pickle.Unpickler):
    names = _ALLOWED

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.names:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no array")
        home, attribute = self.names[module, name]
        return getattr(importlib.import_module(home), attribute)


class _ArraysAndGraphs(_ArraysOnly):
    names = _ALLOWED_GRAPH


def read_arrays(path: Path, encoding: str, *, graphs: bool = False) -> Any:
    """The content of a pickle of plain containers and arrays, with `graphs` also of scipy's CSR.

    Raises InputError for a damaged file and for one that names anything else.
    """
    reader = _ArraysAndGraphs if graphs else _ArraysOnly
    try:
        with path.open("rb") as stream:
            return reader(stream, encoding=encoding).load()
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error), "a readable file") from None
    except ImportError:
        raise
    except Exception as error:
        # A damaged pickle can fail in any way its opcodes can.
        reason = str(error) or type(error).__name__
        raise InputError(
            path, None, f"a damaged file ({reason})", "the file as published; fetch it again"
        ) from None
