"""Reads published pickles of arrays; a pickle that names anything else is refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from gnnhpc.core.errors import InputError

_ALLOWED = {
    *("numpy.ndarray", "numpy.dtype", "_codecs.encode", "collections.defaultdict"),
    *("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct"),
    *("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer"),
    *("scipy.sparse.csr.csr_matrix", "scipy.sparse._csr.csr_matrix"),
    *("__builtin__.list", "builtins.list"),
}
"""The names that Planetoid's and CIFAR-10's pickles have."""


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" not in _ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no array")
        # scipy warns of the module's old name.
        return super().find_class(module.replace("sparse.csr", "sparse"), name)


def read_arrays(path: Path, encoding: str) -> Any:
    """The content of a pickle of plain containers, arrays and scipy's CSR.

    Raises InputError for a damaged file and for one that names anything else.
    """
    try:
        with path.open("rb") as stream:
            return _ArraysOnly(stream, encoding=encoding).load()
    except OSError as error:
        raise InputError(path, None, error.strerror or str(error), "a readable file") from None
    except Exception as error:
        # A damaged pickle can fail in any way its opcodes can.
        found = f"a damaged file ({error or type(error).__name__})"
        raise InputError(path, None, found, "the file as published; fetch it again") from None
