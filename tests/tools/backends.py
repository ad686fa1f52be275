"""What computes layers in a test: code of its choice, and libraries that may be missing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
import torch
from packaging.version import Version

from gnnhpc.core.errors import InputError
from gnnhpc.kernels import aggregate, attention, compile, dispatch, rowwise, sparse_features
from gnnhpc.kernels.triton import launch
from gnnhpc.models.layers import linear
from gnnhpc.models.libraries import import_dgl

MODULES = (aggregate, attention, dispatch, linear, rowwise, sparse_features)


def has_kernel(name: str = "aggregate") -> bool:
    """Whether this kernel is compiled here."""
    return compile.load_kernel(name) is not None


needs_compiler = pytest.mark.skipif(not has_kernel(), reason="no compiler")


INTERPRETS = Version("3.7")
"""Triton's interpreter of earlier releases fails with numpy from 2.4 on."""
GPU = "cuda" if torch.cuda.is_available() else "cpu"
"""Where Triton's programs compute: its interpreter takes tensors of a CPU."""


def device_of(code: dispatch.Backend) -> str:
    """The device on which this code is tested."""
    return GPU if code == "triton" else "cpu"


def needs_triton() -> None:
    """Skips the test where no program of Triton's runs, unless it must."""
    why = ""
    if not launch.is_installed():
        why = "triton is not installed: make setup-triton"
    elif GPU == "cpu" and Version(version("triton")) < INTERPRETS:
        why = f"the interpreter of triton {version('triton')} needs an earlier numpy"
    _skip("TRITON", why)


def needs_dgl() -> None:
    """Skips the test where DGL is not installed, unless it must be."""
    try:
        import_dgl()
    except InputError as error:
        _skip("DGL", str(error))


def needs_pyg_sampler() -> None:
    """Skips the test where torch-sparse and pyg-lib are missing, unless one must be there."""
    import torch_geometric.typing as has

    if not (has.WITH_PYG_LIB or has.WITH_TORCH_SPARSE):
        _skip("PYG_SAMPLER", "needs torch-sparse or pyg-lib: make setup-pyg-sampler")


def _skip(what: str, why: str) -> None:
    """Skip the test if there is a reason; fail it where $GNNHPC_REQUIRE_<what> is set."""
    if why:
        (pytest.fail if os.environ.get(f"GNNHPC_REQUIRE_{what}") else pytest.skip)(why)


@contextlib.contextmanager
def computed_by(code: dispatch.Backend) -> Iterator[None]:
    """Within it graph layers compute in this code, whatever is here; skips the test without it.

    Triton's programs read rows in pieces of few edges, so that small graphs have several.
    """
    if code == "triton":
        needs_triton()
    if code == "c++" and not has_kernel():
        pytest.skip("no compiler")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "_EDGES", 4)
        for module in MODULES:
            patch.setattr(module, "backend", lambda kernel, x: code)
        yield


@contextlib.contextmanager
def codes_that_compute() -> Iterator[set[str]]:
    """Yields "c++" and "triton" as soon as such a function is called within it."""
    found: set[str] = set()
    compiled = dispatch._compiled_function

    def function(*args: Any) -> Any:
        found.add("c++")
        return compiled(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "_compiled_function", function)
        if launch.is_installed():
            from triton.runtime.jit import KernelInterface

            launched = KernelInterface.__getitem__

            def program(self: Any, grid: Any) -> Any:
                found.add("triton")
                return launched(self, grid)

            patch.setattr(KernelInterface, "__getitem__", program)
        yield found


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it torch and the kernels compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
