"""The facts of an attempt that decide what its numbers may be joined with.

A row of `FACTS` reads one fact from the ranks' headers and the result: None where the record does
not say, which older ones do not. Packages, kernels and settings of the site are facts each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from analysis.across.likeness import Facts
from gnnhpc.records.schema import Result

Headers = Sequence[Mapping[str, Any]]
"""Of the ranks of one attempt."""
Read = Callable[[Headers, Result | None], str | None]
SITE, VARIABLE = "site ", "variable "


def _over_ranks(values: Iterable[object]) -> str | None:
    """Each value that ranks had, once; None if a rank did not record it."""
    found = list(values)
    if not found or any(value in (None, "") for value in found):
        return None
    return " and ".join(sorted({str(value) for value in found}))


def _code(headers: Headers, result: Result | None) -> str | None:
    found = _over_ranks(header.get("code") for header in headers)
    return found or (result.provenance.get("code") if result else None)


def _device(headers: Headers, result: Result | None) -> str | None:
    """Without its number: a rank's GPU is the first or the second of its node."""
    return _over_ranks(str(header.get("device") or "").partition(":")[0] for header in headers)


def _implementation(headers: Headers, result: Result | None) -> str | None:
    """Of every rank, as its header or the audit says; older results have rank 0's only."""
    found = _over_ranks(header.get("implementation") for header in headers)
    if found or result is None:
        return found
    for check in result.audit:
        if check.name == "kernels" and check.values.get("implementations"):
            return _over_ranks(check.values["implementations"])
    return result.provenance.get("implementation")


def _schema(headers: Headers, result: Result | None) -> str | None:
    return str(result.schema) if result else None


def _of_header(key: str) -> Read:
    return lambda headers, _: _over_ranks(header.get(key) for header in headers)


def _of_device(key: str) -> Read:
    return lambda headers, _: _over_ranks(
        (header.get("device_facts") or {}).get(key) for header in headers
    )


FACTS: dict[str, Read] = {
    "code": _code,
    "CPU model": _of_header("cpu_model"),
    "device": _device,
    "instructions": _of_header("cpu_capability"),
    "GPU": _of_device("name"),
    "GPU driver": _of_device("driver"),
    "CUDA": _of_device("cuda"),
    "NCCL": _of_device("nccl"),
    "TF32": _of_device("tf32"),
    "threads a rank": _of_header("threads"),
    "implementation": _implementation,
    "record schema": _schema,
}


def measured_facts(headers: Headers, result: Result | None) -> Facts:
    """All facts of one attempt.

    The version of gnnhpc is left out: its code says more. So is the name of the site, which may
    change while its settings stay.
    """
    return {
        **{name: read(headers, result) for name, read in FACTS.items()},
        **_each_of("versions", "", headers, leave_out="gnnhpc"),
        **_each_of("kernels", "kernel ", headers),
        **_transfers(headers, result),
        **_each_of("site", SITE, headers, leave_out="name"),
        **_each_of("variables", VARIABLE, headers),
    }


def _transfers(headers: Headers, result: Result | None) -> Facts:
    """Between the stages of this layout: those of another may be on more nodes."""
    ways = [header.get("transfers") for header in headers]
    if result is None or not ways or not all(ways):
        return {}
    layout, engine = (result.experiment.get(key) for key in ("layout", "engine"))
    every = {way for of_rank in ways for way in str(of_rank).split(" and ")}
    return {f"transfers of {layout} by {engine}": " and ".join(sorted(every, reverse=True))}


def _each_of(key: str, prefix: str, headers: Headers, leave_out: str = "") -> Facts:
    """Each entry of a mapping in the headers as a fact, over the ranks that have it."""
    found: dict[str, list[object]] = {}
    for header in headers:
        for name, value in sorted((header.get(key) or {}).items()):
            if name != leave_out:
                # Of a kernel without a cache the same compiler is named with a note.
                found.setdefault(prefix + name, []).append(str(value).partition(", built for")[0])
    return {name: _over_ranks(values) for name, values in found.items()}


def with_nones(facts: Mapping[Any, Facts], headers: Mapping[Any, Headers]) -> dict[Any, Facts]:
    """The same with `none` for settings of a site, and variables, that only others have set.

    Of an attempt that recorded no site at all they stay unknown.
    """
    known: dict[Any, dict[str, str | None]] = {key: {} for key in facts}
    for kind, prefix in (("site", SITE), ("variables", VARIABLE)):
        names = sorted(
            {name for each in facts.values() for name in each if name.startswith(prefix)}
        )
        for key, found in headers.items():
            if any(header.get(kind) is not None for header in found):
                known[key] |= dict.fromkeys(names, "none")
    return {key: {**each, **known[key], **each} for key, each in facts.items()}
