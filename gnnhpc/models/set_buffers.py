"""Writes buffers: what another module of the same layers holds in its own, or what was before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gnnhpc.models.tensor_bytes import bytes_of


def all_buffers(module: nn.Module) -> dict[str, Tensor]:
    """By each of their names."""
    return dict(module.named_buffers(remove_duplicate=False))


class _Given(NamedTuple):
    before: Tensor
    """Kept, as its identity is looked up."""
    now: Tensor
    value: Tensor


@torch.no_grad()
def set_buffers(module: nn.Module, held: Mapping[str, Tensor]) -> list[str]:
    """In place where shape and kind of number are alike: a forward may have made a buffer, or
    another one, and may have dropped it.

    `held` is by name, all names of a buffer that has several. Returns those that no place is known
    for, as of a module that a forward made.
    """
    places = dict(module.named_modules(remove_duplicate=False))
    for place, child in places.items():
        for name in [*child._buffers.keys()]:
            if _path(place, name) not in held:
                child._buffers[name] = None
    done: dict[int, _Given] = {}
    unplaced = []
    for path, value in held.items():
        place, _, name = path.rpartition(".")
        owner = places.get(place)
        if owner is None:
            unplaced.append(path)
        elif name not in owner._buffers:
            owner.__dict__.pop(name, None)
            owner.register_buffer(name, value.clone())
        elif (before := owner._buffers[name]) is None:
            owner._buffers[name] = value.detach().clone()
        elif (given := done.get(id(before))) is None:
            now = _with_value(before, value)
            done[id(before)] = _Given(before, now, value)
            owner._buffers[name] = now
        else:
            # A forward may have given another one to one of a buffer's names.
            same = _same_bits(given.value, value)
            owner._buffers[name] = given.now if same else value.detach().clone()
    return unplaced


def copy_into(buffer: Tensor, value: Tensor) -> None:
    """`value` is of numbers that are alike where those of an expanded buffer lie in one place."""
    for axis in _expanded_axes(buffer):
        buffer, value = buffer.narrow(axis, 0, 1), value.narrow(axis, 0, 1)
    buffer.copy_(value)


def _expanded_axes(buffer: Tensor) -> list[int]:
    """Along which several of its numbers lie in one place."""
    sizes = zip(buffer.stride(), buffer.shape, strict=True)
    return [axis for axis, (step, size) in enumerate(sizes) if step == 0 and size > 1]


def _path(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _with_value(buffer: Tensor, value: Tensor) -> Tensor:
    alike = buffer.shape == value.shape and buffer.dtype == value.dtype
    if alike and not _expanded_axes(buffer):
        return buffer.copy_(value)
    return value.detach().to(buffer.device, copy=True)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return torch.equal(bytes_of(a), bytes_of(b))
