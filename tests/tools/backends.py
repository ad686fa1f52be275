"""Layers computed by the code of a test's choice."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from gnnhpc.kernels import aggregate, attention, compile, dispatch, rowwise, sparse_features
from gnnhpc.models.layers import linear

MODULES = (aggregate, attention, dispatch, linear, rowwise, sparse_features)


def has_kernel(name: str = "aggregate") -> bool:
    """Whether this kernel is compiled here."""
    return compile.load_kernel(name) is not None


needs_compiler = pytest.mark.skipif(not has_kernel(), reason="no compiler")


@contextlib.contextmanager
def computed_by(code: dispatch.Backend) -> Iterator[None]:
    """Within it graph layers compute in "torch" or "triton", whatever is here."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "backend", lambda kernel, x: code)
        yield


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it torch and the kernels compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
