"""Whether a forward is computed again, in backward, because its activations were not kept.

It begins from what the first forward began from, as a layer may use the buffers and the generators
that it moves, and must leave no second trace: running statistics have been moved, and what watches
layers by hooks has seen it.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnhpc.models.generators import generators_of, put_back, set_state, state_of

_KNOWN = frozenset({"gnnhpc", "torch", "torch_geometric", "dgl"})
"""Packages whose layers draw from the context or from torch's generators alone."""


class _OfThread(threading.local):
    recomputing = False


_of_thread = _OfThread()


def is_recomputing() -> bool:
    """Whether the calling thread computes a forward again."""
    return _of_thread.recomputing


@dataclass(frozen=True)
class _Copied:
    """Buffers that share memory, and what they held."""

    buffers: list[Tensor]
    versions: list[int]
    copies: list[Tensor]

    @classmethod
    def of(cls, buffers: list[Tensor]) -> _Copied:
        return cls(buffers, [b._version for b in buffers], _copies(buffers))

    def is_of(self, buffers: list[Tensor]) -> bool:
        same = len(buffers) == len(self.buffers) and all(map(operator.is_, buffers, self.buffers))
        return same and [b._version for b in buffers] == self.versions


@dataclass(frozen=True)
class Before:
    """What a forward began from, beside its input, parameters and torch's own generators."""

    buffers: list[dict[str, Tensor | None]]
    """Of each module, some of whose copies other forwards have too."""
    copied: list[_Copied]
    generators: list[Any]


class ForwardState:
    """The buffers and generators of a stage's modules, some of them a user's."""

    def __init__(self, stage: nn.Module) -> None:
        users = [m for m in stage.modules() if type(m).__module__.partition(".")[0] not in _KNOWN]
        self._modules = [
            m
            for m in stage.modules()
            if isinstance(m._buffers, dict) and (m._buffers or m in users)
        ]
        self._generators: list[Any] = [*generators_of(stage.modules())]
        if users:
            self._generators += [random, np.random]
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
            self._last.append(last if last and last.is_of(group) else _Copied.of(group))
        return Before(held, self._last, [state_of(each) for each in self._generators])

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
        for module, buffers in zip(self._modules, before.buffers, strict=True):
            _exchange(module, {n: b if b is None else copies[id(b)] for n, b in buffers.items()})
        _of_thread.recomputing = True
        try:
            with put_back(self._generators):
                for generator, state in zip(self._generators, before.generators, strict=True):
                    set_state(generator, state)
                yield
        finally:
            _of_thread.recomputing = False
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


def _memory(buffer: Tensor) -> int:
    """Of which buffers are parts, or themselves where their layout has no one memory."""
    if buffer.layout != torch.strided or not buffer.numel():
        return -id(buffer)
    return buffer.untyped_storage().data_ptr()
