"""What a checkpoint was computed with, and why an attempt may not go on from one.

A resumed attempt and the one before it become one measurement, and their losses one series. So a
checkpoint is gone on from only where what computes is the same: code, packages, and of each rank
CPU, threads, device, kernels and what else changes rounding. Hosts, partitions and the version of
submitit may differ: what matters of them shows in those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gnnhpc.records.provenance import code_digest, versions

COMPARED = (
    "cpu_model",
    "cpu_capability",
    "threads",
    "implementation",
    "kernels",
    "variables",
)
"""Of the facts of each rank."""
_NOT_COMPARED = "submitit"
_WHICH_GPU = ("identity", "visible")
"""Of a GPU's facts, those that only say which of several equal ones it is."""


def written_by(
    ranks: Sequence[Mapping[str, Any]], balance: Sequence[int] | None = None
) -> dict[str, Any]:
    """What this attempt computes with, as its checkpoints keep it; `ranks` are facts by rank.

    `balance` is layers a stage: no difference, as whoever goes on takes it over.
    """
    packages = {name: found for name, found in versions().items() if name != _NOT_COMPARED}
    return {
        "code": code_digest(),
        "versions": packages,
        "ranks": [
            {key: rank.get(key) for key in COMPARED} | {"gpu": _gpu(rank.get("device_facts"))}
            for rank in ranks
        ],
        "balance": None if balance is None else list(balance),
    }


def _gpu(facts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if facts is None:
        return None
    return {key: value for key, value in facts.items() if key not in _WHICH_GPU}


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """In words, each thing in which what wrote a checkpoint and this attempt differ."""
    return [
        f"{what} {_shown(old)} there, {_shown(new)} here" for what, old, new in _pairs(there, here)
    ]


def _pairs(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, object, object]]:
    if there.get("code") != here["code"]:
        yield "code", there.get("code"), here["code"]
    yield from _differing(there.get("versions") or {}, here["versions"])
    old, new = there.get("ranks") or [], here["ranks"]
    if len(old) != len(new):
        yield "ranks", len(old), len(new)
        return
    for number, (before, now) in enumerate(zip(old, new, strict=True)):
        for key, *values in _differing(before, now):
            yield f"{key} of rank {number}", values[0], values[1]


def _differing(
    there: Mapping[str, Any], here: Mapping[str, Any]
) -> Iterator[tuple[str, object, object]]:
    for key in sorted({*there, *here}):
        if there.get(key) != here.get(key):
            yield key, there.get(key), here.get(key)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {found}" for key, found in value.items()) or "none"
    return "none" if value is None else str(value)
