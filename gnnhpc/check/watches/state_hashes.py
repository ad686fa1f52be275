"""Hashes of what a stage holds, to compare replicas bit for bit and one moment with another."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from gnnhpc.models.tensor_bytes import checksum

Hashes = dict[str, int]
"""CRC-32 of each tensor's bytes, by name."""


def hashes_of(named: Iterable[tuple[str, Tensor]]) -> Hashes:
    return {name: checksum(tensor) for name, tensor in named}


def differing(one: Hashes, other: Hashes) -> list[str]:
    """Names whose tensors are not the same in both."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def named_in_words(names: list[str]) -> str:
    """The first of some names, and how many there are besides."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
