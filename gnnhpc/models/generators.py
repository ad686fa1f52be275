"""Generators of random numbers, the process's and a module's own, left as they were."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnhpc.models.own_attributes import OF_EVERY_MODULE

MOST = 64
"""Of longer lists nothing is looked at."""
Generator = torch.Generator | random.Random | np.random.Generator | np.random.RandomState
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def seed_all(seed: int) -> None:
    """Torch's, Python's and numpy's of this process.

    Not by `torch.manual_seed`, which keeps the stack of every call for devices that there may be: a
    millisecond, of which a sampled batch or a small step has few.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def generators_of(modules: Iterable[nn.Module]) -> list[Generator]:
    """Those that are attributes of these modules, or stand in lists, tuples and dictionaries that
    are."""
    return [
        generator
        for module in modules
        for name, value in vars(module).items()
        if name not in OF_EVERY_MODULE
        for generator in generators_in(value)
    ]


def generators_in(value: Any) -> list[Generator]:
    """The value itself, or those in it."""
    if isinstance(value, _GENERATORS):
        return [value]
    if type(value) not in (list, tuple, dict) or len(value) > MOST:
        return []
    values = value.values() if type(value) is dict else value
    return [each for each in values if isinstance(each, _GENERATORS)]


def state_of(generator: Any) -> Any:
    """A copy, for `set_state`, of one of these or of the modules `random` and `numpy.random`."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.getstate() if hasattr(generator, "getstate") else generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif hasattr(generator, "setstate"):
        generator.setstate(state)
    else:
        generator.set_state(state)


@contextlib.contextmanager
def put_back(generators: Iterable[Any]) -> Iterator[None]:
    """Leave these as they were."""
    held = [(each, state_of(each)) for each in generators]
    try:
        yield
    finally:
        for generator, state in held:
            set_state(generator, state)


@contextlib.contextmanager
def generators_put_back(modules: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Leave torch's generators, Python's, numpy's, and those that are attributes of the modules as
    they were."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    own = generators_of(modules)
    with torch.random.fork_rng(devices), put_back([random, np.random, *own]):
        yield
