"""Turns faults into checks, joins checks of both ends, and keeps ranks together where a check fails
itself."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from gnnhpc.core.errors import GnnhpcError
from gnnhpc.records.schema import Check

if TYPE_CHECKING:
    from gnnhpc.distributed.mesh import Mesh

T = TypeVar("T")
log = logging.getLogger(__name__)
_SHOWN = 3
_ORDER = ("invalid", "inconclusive", "suspect", "unknown", "ok")


def verdict_of(
    name: str, faults: Sequence[str], good: str = "", *, is_suspect: bool = False
) -> Check:
    """Return an `ok` check with the sentence `good`, or an invalid or suspect one with faults."""
    if faults:
        return Check(name, "suspect" if is_suspect else "invalid", few(faults, "; "))
    return Check(name, "ok", good)


def few(items: Sequence[str], separator: str = ", ") -> str:
    """Join the first three items and count the others."""
    more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
    return separator.join(items[:_SHOWN]) + more


def why_failed(error: Exception) -> str:
    """Log the traceback of an error in a check, and return it in one line."""
    log.error("a check failed", exc_info=error)
    first = (str(error).splitlines() or [""])[0]
    return f"the check itself failed ({type(error).__name__}: {first}), see the log of the rank"


class WrongRunError(GnnhpcError):
    """The run is wrong and ends. Its result has `check`, whose detail is a part of the message."""

    def __init__(self, before: str, check: Check) -> None:
        super().__init__(f"{before}: {check.detail}")
        self.check = check


class CheckError(Exception):
    """Nothing can be compared, or a check itself failed; the message is the reason."""


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

    The graver one stays, of equal ones the first; two that are `ok` say what both compared.
    """
    joined: dict[str, Check] = {}
    for check in checks:
        before = joined.setdefault(check.name, check)
        graver = min(before, check, key=lambda each: _ORDER.index(each.verdict))
        if before.verdict == check.verdict == "ok" and before.detail != check.detail:
            graver = replace(check, detail=f"{before.detail}; {check.detail}")
        joined[check.name] = graver
    return list(joined.values())
