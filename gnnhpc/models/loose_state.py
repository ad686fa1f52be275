"""What a user's modules keep beside parameters and buffers: numbers, words and generators.

A checkpoint does not hold it: a layer that computes with it goes on from other values.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import nn

from gnnhpc.models.generators import Generator, state_of

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, complex, str)


def loose_state(module: nn.Module) -> dict[str, str]:
    """By module and attribute, the value in words, or a generator's digest.

    Without modules of this project; and without tensors and containers, as caches are, which may be
    filled alike again.
    """
    return {
        f"{name}.{key}": told
        for name, each in module.named_modules()
        if not type(each).__module__.startswith("gnnhpc.")
        for key, value in vars(each).items()
        if key not in _OF_EVERY_MODULE and (told := _in_words(value)) is not None
    }


def own_generators(module: nn.Module) -> dict[str, str]:
    """Those of `loose_state` that are generators."""
    return {
        f"{name}.{key}": told
        for name, each in module.named_modules()
        for key, value in vars(each).items()
        if (told := _generator(value)) is not None
    }


def _in_words(value: Any) -> str | None:
    return repr(value) if isinstance(value, _PLAIN) else _generator(value)


def _generator(value: Any) -> str | None:
    """A digest of its state; None for what is none."""
    if not isinstance(value, Generator):
        return None
    state = state_of(value)
    told = bytes(state.tolist()) if isinstance(state, torch.Tensor) else repr(state).encode()
    return f"generator {hashlib.sha256(told).hexdigest()[:16]}"
