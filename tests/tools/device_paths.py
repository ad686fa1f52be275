"""Runs on a CPU that take the ways of a GPU: features and graph as if they lay on a device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gnnhpc.batches.sampled.placement import Placement, Where


def _place(features: Where, graph: Where) -> None:
    from gnnhpc.batches.sampled import sampled_batches

    def chosen(*_: Any) -> Placement:
        return Placement(features, graph)

    sampled_batches.choose = chosen


def as_on_a_device(features: Where, graph: Where = "host") -> Callable[[], None]:
    """For processes of their own: nothing puts it back."""
    return functools.partial(_place, features, graph)
