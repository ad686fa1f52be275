"""Attributes that a user's modules keep beside parameters, buffers and modules."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_KNOWN = frozenset({"gnnhpc", "torch", "torch_geometric", "dgl"})
"""Packages whose layers keep nothing there that changes."""
_CONTAINERS = frozenset({list, dict, set, deque, OrderedDict, defaultdict, Counter})
"""Exactly these: others may refuse to be changed."""
_MOST = 10_000
"""Of a larger container the contents are not kept."""
_LARGE_BYTES = 2**20


@dataclass(frozen=True)
class Attributes:
    """Of one module."""

    values: dict[str, Any]
    contents: list[tuple[Any, Any]]
    """Containers, which others may have too, and copies of them."""
    large: dict[str, weakref.ref[Tensor]]


def users_modules(module: nn.Module) -> dict[str, nn.Module]:
    """By name, a user's modules in this one and those of packages that a user may have put in
    them and changes; none where all are of known packages."""
    found = {name: each for name, each in module.named_modules() if _package(each) != "gnnhpc"}
    return found if any(_package(each) not in _KNOWN for each in found.values()) else {}


def attributes_of(module: nn.Module, *, with_large: bool = True) -> Attributes:
    """Large tensors are kept, or found again as long as somebody else keeps them."""
    values = {k: v for k, v in vars(module).items() if k not in OF_EVERY_MODULE}
    contents, large = [], {}
    for name, value in values.items():
        if type(value) in _CONTAINERS:
            if len(value) <= _MOST:
                contents.append((value, copy.copy(value)))
        elif not with_large and _is_large(value):
            large[name] = weakref.ref(value)
    for name in large:
        del values[name]
    return Attributes(values, contents, large)


def set_attributes(modules: Iterable[nn.Module], each: Sequence[Attributes]) -> None:
    """Take all of `attributes_of`, and no other; a large tensor that is gone stays as it is."""
    for module, held in zip(modules, each, strict=True):
        present = vars(module)
        for name in present.keys() - held.values.keys() - held.large.keys() - OF_EVERY_MODULE:
            del present[name]
        present.update(held.values)
        present.update({n: value for n, r in held.large.items() if (value := r()) is not None})
        for container, contents in held.contents:
            if isinstance(container, list):
                container[:] = contents
            else:
                container.clear()
                fill = container.extend if isinstance(container, deque) else container.update
                fill(contents)


@contextlib.contextmanager
def attributes_put_back(module: nn.Module) -> Iterator[None]:
    """Leave those of a user's modules in this one as they were."""
    users = [*users_modules(module).values()]
    held = [attributes_of(each) for each in users]
    try:
        yield
    finally:
        set_attributes(users, held)


def _is_large(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() * value.element_size() > _LARGE_BYTES


def _package(module: nn.Module) -> str:
    return type(module).__module__.partition(".")[0]
