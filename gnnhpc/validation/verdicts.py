"""Small helpers that turn faults into the checks of a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gnnhpc.records.schema import Check

_SHOWN = 3


def verdict_of(
    name: str,
    faults: Sequence[str],
    good: str,
    *,
    fault: Literal["invalid", "suspect"] = "invalid",
    values: Mapping[str, Any] | None = None,
) -> Check:
    """Return an `ok` check with the sentence `good`, or one with verdict `fault` and the faults."""
    details = dict(values or {})
    if faults:
        return Check(name, fault, few(faults, "; "), details)
    return Check(name, "ok", good, details)


def few(items: Sequence[str], separator: str = ", ") -> str:
    """Join the first three items and count the others."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return separator.join(items[:_SHOWN]) + more
