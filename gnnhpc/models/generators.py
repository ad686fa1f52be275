"""Generators of random numbers, the process's and a module's own, left as they were."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

Generator = torch.Generator | random.Random | np.random.Generator | np.random.RandomState


def seed_all(seed: int) -> None:
    """Torch's, Python's and numpy's of this process."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def generators_of(modules: Iterable[nn.Module]) -> list[Generator]:
    """Those that are attributes of these modules, not of modules in them."""
    values = (value for module in modules for value in vars(module).values())
    return [value for value in values if isinstance(value, Generator)]


def state_of(generator: Generator) -> Any:
    """A copy, for `set_state`."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def set_state(generator: Generator, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


@contextlib.contextmanager
def generators_put_back(
    modules: Iterable[nn.Module] = (), devices: Iterable[torch.device] | None = None
) -> Iterator[None]:
    """Leave torch's generators, on the CPU and on `devices` (None: all that are in use), Python's,
    numpy's, and those that are attributes of the modules as they were."""
    held = [(each, state_of(each)) for each in generators_of(modules)]
    python, numpy = random.getstate(), np.random.get_state()
    if devices is None:
        count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
        devices = [torch.device("cuda", number) for number in range(count)]
    with torch.random.fork_rng(list(devices)):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
            for generator, state in held:
                set_state(generator, state)
