"""Turns faults into checks, joins checks of both ends, and keeps ranks together where a check fails
itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from gnnhpc.records.schema import Check

if TYPE_CHECKING:
    from gnnhpc.distributed.mesh import Mesh

T = TypeVar("T")
log = logging.getLogger(__name__)
_SHOWN = 3
_ORDER = ("invalid", "inconclusive", "suspect", "unknown", "ok")


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


def why_failed(error: Exception) -> str:
    """Log the traceback of an error in a check, and return it in one line."""
    log.error("a check failed", exc_info=error)
    first = (str(error).splitlines() or [""])[0]
    return f"the check itself failed ({type(error).__name__}: {first}), see the log of the rank"


class CheckError(Exception):
    """Nothing can be compared, or a check itself failed; the message is the reason."""


class LayerFailedError(CheckError):
    """A layer raised an error."""


def on_all_ranks(mesh: Mesh, work: Callable[[], T]) -> list[T]:
    """What `work`, in which ranks do not wait for each other, returns on each rank; a collective.

    Raises CheckError on all ranks where it fails on one.
    """
    value: Any = None
    failed: CheckError | None = None
    try:
        value = work()
    except CheckError as error:
        failed = error
    # The other ranks wait for what this one has found.
    except Exception as error:
        failed = CheckError(why_failed(error))
    everyone: list[tuple[T, CheckError | None]] = mesh.gather_objects((value, failed))
    for _, failure in everyone:
        if failure is not None:
            raise failure
    return [found for found, _ in everyone]


def one_a_name(checks: Sequence[Check]) -> list[Check]:
    """Join checks of the same name, which ran at the start and at the end.

    The graver verdict stays, of equal ones the first; two that are `ok` say what both compared. Of
    values the sum of seconds stays, and of each entry of a mapping the larger one (of `compared`,
    which are shares, the smaller).
    """
    joined: dict[str, Check] = {}
    for check in checks:
        before = joined.get(check.name)
        joined[check.name] = check if before is None else _joined(before, check)
    return list(joined.values())


def _joined(one: Check, other: Check) -> Check:
    graver = min(one, other, key=lambda each: _ORDER.index(each.verdict))
    detail = graver.detail
    if one.verdict == other.verdict == "ok" and one.detail != other.detail:
        detail = f"{one.detail}; {other.detail}"
    values = one.values | other.values
    for key in one.values.keys() & other.values.keys():
        ours, theirs = one.values[key], other.values[key]
        if key == "seconds":
            values[key] = round(ours + theirs, 3)
        elif isinstance(ours, dict) and isinstance(theirs, dict):
            chosen = min if key == "compared" else _larger
            both = {k: chosen(ours[k], theirs[k]) for k in ours.keys() & theirs.keys()}
            values[key] = ours | theirs | both
    return replace(graver, detail=detail, values=values)


def _larger(one: float | None, other: float | None) -> float | None:
    """The larger one; None, for no number, is larger than any."""
    return None if one is None or other is None else max(one, other)
