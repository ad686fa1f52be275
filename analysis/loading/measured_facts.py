"""The facts of an attempt that decide what its numbers may be joined with.

A row of `FACTS` reads one fact from the ranks' headers and the result: None where the record does
not say, which older ones do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from analysis.across.likeness import Facts
from gnnhpc.records.schema import Result

Headers = Sequence[Mapping[str, Any]]
"""Of the ranks of one attempt."""


def _over_ranks(values: Iterable[object]) -> str | None:
    """Each value that ranks had, once; None if a rank did not record it."""
    found = list(values)
    if not found or any(value in (None, "") for value in found):
        return None
    return " and ".join(sorted({str(value) for value in found}))


def _code(headers: Headers, result: Result | None) -> str | None:
    return result.provenance.get("code") if result else None


def _cpu_model(headers: Headers, result: Result | None) -> str | None:
    return _over_ranks(header.get("cpu_model") for header in headers)


def _device(headers: Headers, result: Result | None) -> str | None:
    """Without its number: a rank's GPU is the first or the second of its node."""
    return _over_ranks(str(header.get("device") or "").partition(":")[0] for header in headers)


def _threads(headers: Headers, result: Result | None) -> str | None:
    return _over_ranks(header.get("threads") for header in headers)


def _kernels(headers: Headers, result: Result | None) -> str | None:
    """As the audit looked at every rank; older results have rank 0's only."""
    for check in result.audit if result else ():
        if check.name == "kernels" and check.values.get("implementations"):
            return _over_ranks(check.values["implementations"])
    return result.provenance.get("implementation") if result else None


def _schema(headers: Headers, result: Result | None) -> str | None:
    return str(result.schema) if result else None


FACTS: dict[str, Callable[[Headers, Result | None], str | None]] = {
    "code": _code,
    "CPU model": _cpu_model,
    "device": _device,
    "threads a rank": _threads,
    "kernels": _kernels,
    "record schema": _schema,
}


def measured_facts(headers: Headers, result: Result | None) -> Facts:
    """All facts of one attempt, and the version of each package as a fact of its own.

    The version of gnnhpc is left out: its code says more.
    """
    facts = {name: read(headers, result) for name, read in FACTS.items()}
    packages = {name for header in headers for name in header.get("versions") or ()}
    return facts | {
        name: _over_ranks((header.get("versions") or {}).get(name) for header in headers)
        for name in sorted(packages - {"gnnhpc"})
    }
