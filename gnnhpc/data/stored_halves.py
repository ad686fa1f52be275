"""Dense features kept in half precision, once for all ranks of a host."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gnnhpc.core.errors import InputError
from gnnhpc.data.cache import Arrays, load_or_build
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.settings import RedditShaped

_LARGEST = float(np.finfo(np.float16).max)
_AT_ONCE = 1 << 14


def with_storage(
    config: RedditShaped | PublishedGraph, raw: list[Path], arrays: Arrays, made_by: str = ""
) -> Arrays:
    """A graph's arrays with features as the settings keep them, which lie in a cache of their own.

    Raises InputError for numbers that are too large for half precision.
    """
    if config.storage == "float32":
        return arrays

    def halves(config: RedditShaped | PublishedGraph, raw: list[Path], work: Path) -> Arrays:
        dense = arrays["dense"]
        kept = np.empty(dense.shape, np.float16)
        for begin in range(0, len(dense), _AT_ONCE):
            rows = dense[begin : begin + _AT_ONCE]
            largest = float(np.abs(rows, where=np.isfinite(rows), out=np.zeros_like(rows)).max())
            if largest > _LARGEST:
                allowed = f"float32, or numbers up to {_LARGEST:g}"
                found = f"float16, and features of {config.name} up to {largest:g}"
                raise InputError("data", "storage", found, allowed)
            kept[begin : begin + _AT_ONCE] = rows
        return {"dense": kept}

    return arrays | load_or_build(config, raw, halves, made_by=f"{made_by}, {config.storage}")
