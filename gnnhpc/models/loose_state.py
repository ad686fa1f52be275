"""What a user's modules keep beside parameters and buffers: numbers, words and generators.

A checkpoint does not hold it: a layer that computes with it goes on from other values.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnhpc.models.generators import MOST, Generator, generators_of, state_of
from gnnhpc.models.own_attributes import OF_EVERY_MODULE, users_modules

OF_GENERATOR = "generator "
"""How the words for one begin."""
_WORDS = 100
_PLAIN = (bool, int, float, complex, str, np.generic)


def loose_state(module: nn.Module) -> dict[str, str]:
    """By module and attribute, the value in words, or a generator's digest.

    Also of short lists, tuples and dictionaries of these. Without tensors and what is empty at
    first, as caches are, which may be filled alike again.
    """
    return {
        f"{name}.{key}": told
        for name, each in users_modules(module).items()
        for key, value in vars(each).items()
        if key not in OF_EVERY_MODULE and (told := _in_words(value)) is not None
    }


def plain_values(module: nn.Module) -> dict[str, Any]:
    """By module and attribute, the numbers and words of a user's modules, and short lists, tuples
    and dictionaries of these."""
    return {
        f"{name}.{key}": value
        for name, each in users_modules(module).items()
        for key, value in vars(each).items()
        if key not in OF_EVERY_MODULE and _is_plain(value)
    }


def take_plain_values(
    module: nn.Module, name: str, values: Mapping[str, Any], *, known: bool
) -> None:
    """Those of `plain_values` of a module of this name; `known`: where it has one of this type."""
    for inner, each in users_modules(module).items():
        place = f"{name}.{inner}" if inner else name
        for full, value in values.items():
            of, _, key = full.rpartition(".")
            if of == place and not (known and type(vars(each).get(key)) is not type(value)):
                vars(each)[key] = copy.copy(value)


def _is_plain(value: Any) -> bool:
    if type(value) in (list, tuple, dict) and len(value) <= MOST:
        values = [*value, *value.values()] if type(value) is dict else value
        return all(isinstance(each, _PLAIN) for each in values)
    return isinstance(value, _PLAIN)


def own_generators(module: nn.Module) -> list[str]:
    """Of a module and those in it, what tells the states of their generators."""
    return [_in_words(each) or "" for each in generators_of(module.modules())]


def _in_words(value: Any) -> str | None:
    """None for what it does not know, or that has such in it."""
    if isinstance(value, Generator):
        state = state_of(value)
        told = bytes(state.tolist()) if isinstance(state, torch.Tensor) else repr(state).encode()
        return f"{OF_GENERATOR}{hashlib.sha256(told).hexdigest()[:16]}"
    if isinstance(value, _PLAIN):
        words = repr(value)
        return words if len(words) <= _WORDS else hashlib.sha256(words.encode()).hexdigest()[:16]
    if type(value) not in (list, tuple, dict) or not 0 < len(value) <= MOST:
        return None
    each = list(value.values() if type(value) is dict else value)
    found = [_in_words(one) for one in each]
    return None if None in found else f"[{', '.join(map(str, found))}]"
