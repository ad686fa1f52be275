"""Whether a forward is computed again, in backward, because its activations were not kept.

It begins from what the first forward began from, as a layer may use the buffers, generators and
plain attributes that it moves, and must leave no second trace: running statistics have been moved,
and what watches layers by hooks has seen it.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnhpc.models.generators import generators_of, put_back, set_state, state_of
from gnnhpc.models.layers.batchnorm import recomputing
from gnnhpc.models.own_attributes import (
    Attributes,
    attributes_of,
    set_attributes,
    users_modules,
)


@dataclass(frozen=True)
class _Copied:
    """Buffers that share memory, and what they held."""

    buffers: list[Tensor]
    versions: list[int]
    copies: list[Tensor]

    @classmethod
    def of(cls, buffers: list[Tensor]) -> _Copied:
        return cls(buffers, [b._version for b in buffers], _copies(buffers))

    def is_of(self, buffers: list[Tensor], *, compared: bool) -> bool:
        """Whether these have not moved; `compared` by their values too, as a version does not tell
        of what is written by numpy or `.data`."""
        same = len(buffers) == len(self.buffers) and all(map(operator.is_, buffers, self.buffers))
        same = same and [b._version for b in buffers] == self.versions
        return same and (not compared or all(map(_is_same, buffers, self.copies)))


@dataclass(frozen=True)
class Before:
    """What a forward began from, beside its input, parameters and torch's own generators."""

    buffers: list[dict[str, Tensor | None]]
    """Of each module, some of whose copies other forwards have too."""
    copied: list[_Copied]
    generators: list[tuple[Any, Any]]
    """Each with its state."""
    attributes: list[Attributes]
    """Of each of a user's modules."""


class ForwardState:
    """What a stage's modules, some of them a user's, may move by a forward."""

    def __init__(self, stage: nn.Module) -> None:
        self._users = [*users_modules(stage).values()]
        self._modules = [
            m
            for m in stage.modules()
            if isinstance(m._buffers, dict) and (m._buffers or m in self._users)
        ]
        self._last: list[_Copied] = []

    def before(self) -> Before:
        """To be taken before the first forward; copies what has moved since the forward before."""
        held = [dict(module._buffers) for module in self._modules]
        groups: dict[int, list[Tensor]] = {}
        for buffers in held:
            for buffer in buffers.values():
                if buffer is not None:
                    groups.setdefault(_memory(buffer), []).append(buffer)
        known = {_memory(each.buffers[0]): each for each in self._last}
        self._last = []
        for memory, group in groups.items():
            last = known.get(memory)
            same = last is not None and last.is_of(group, compared=bool(self._users))
            self._last.append(last if last and same else _Copied.of(group))
        generators = [(each, state_of(each)) for each in self._generators()]
        # Each would keep what the forward before has left, such as its attention weights.
        attributes = [attributes_of(each, with_large=False) for each in self._users]
        return Before(held, self._last, generators, attributes)

    def _generators(self) -> list[Any]:
        """Those that there are now, as a forward may make some."""
        return [random, np.random, *generators_of(self._users)] if self._users else []

    @contextlib.contextmanager
    def again(self, before: Before) -> Iterator[None]:
        """Around a forward that is computed again.

        Present buffers are put aside, not copied back: autograd may have saved them, and takes a
        value that is written for a change.
        """
        copies = {
            id(buffer): mine
            for each in before.copied
            for buffer, mine in zip(each.buffers, _copies(each.copies), strict=True)
        }
        present = [module._buffers.copy() for module in self._modules]
        attributes = [attributes_of(each) for each in self._users]
        moved = [*self._generators(), *(each for each, _ in before.generators)]
        for module, buffers in zip(self._modules, before.buffers, strict=True):
            _exchange(module, {n: b if b is None else copies[id(b)] for n, b in buffers.items()})
        try:
            with recomputing(), put_back(moved):
                set_attributes(self._users, before.attributes)
                for generator, state in before.generators:
                    set_state(generator, state)
                yield
        finally:
            set_attributes(self._users, attributes)
            for module, now in zip(self._modules, present, strict=True):
                _exchange(module, now)


def _exchange(module: nn.Module, buffers: dict[str, Tensor | None]) -> None:
    module._buffers.clear()
    module._buffers.update(buffers)


def _copies(buffers: list[Tensor]) -> list[Tensor]:
    """Which share memory as these do; without what autograd knows of them."""
    if len(buffers) == 1:
        return [buffers[0].detach().clone()]
    return copy.deepcopy([buffer.detach() for buffer in buffers])


def _is_same(buffer: Tensor, copied: Tensor) -> bool:
    """Not where numbers are none, which are copied again; torch does not compare sparse ones."""
    if buffer.layout != torch.strided:
        return True
    alike = buffer.dtype == copied.dtype and buffer.device == copied.device
    return alike and torch.equal(buffer, copied)


def _memory(buffer: Tensor) -> int:
    """Of which buffers are parts, or themselves where their layout has no one memory."""
    if buffer.layout != torch.strided or not buffer.numel():
        return -id(buffer)
    return buffer.untyped_storage().data_ptr()
