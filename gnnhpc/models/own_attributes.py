"""Attributes that a user's modules keep beside parameters, buffers and modules."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_KNOWN = frozenset({"gnnhpc", "torch", "torch_geometric", "dgl"})
"""Packages whose layers keep nothing there that changes."""
_CONTAINERS = (list, dict, set, deque)


@dataclass(frozen=True)
class Attribute:
    """A value, and of a container what was in it: others may have the same container."""

    value: Any
    contents: Any

    @classmethod
    def of(cls, value: Any) -> Attribute:
        return cls(value, copy.copy(value) if isinstance(value, _CONTAINERS) else None)

    def again(self) -> Any:
        """The value with what was in it."""
        if isinstance(self.value, list):
            self.value[:] = self.contents
        elif isinstance(self.value, dict | set):
            self.value.clear()
            self.value.update(self.contents)
        elif isinstance(self.value, deque):
            self.value.clear()
            self.value.extend(self.contents)
        return self.value


Attributes = dict[str, Attribute]


def users_modules(module: nn.Module) -> dict[str, nn.Module]:
    """By name, a user's modules in this one and those of packages that a user may have put in
    them and changes; none where all are of known packages."""
    found = {name: each for name, each in module.named_modules() if _package(each) != "gnnhpc"}
    return found if any(_package(each) not in _KNOWN for each in found.values()) else {}


def attributes_of(module: nn.Module) -> Attributes:
    return {k: Attribute.of(v) for k, v in vars(module).items() if k not in OF_EVERY_MODULE}


def set_attributes(modules: Iterable[nn.Module], each: Sequence[Attributes]) -> None:
    """Take all of `attributes_of`, and no other."""
    for module, attributes in zip(modules, each, strict=True):
        present = vars(module)
        for name in present.keys() - attributes.keys() - OF_EVERY_MODULE:
            del present[name]
        present.update({name: attribute.again() for name, attribute in attributes.items()})


def _package(module: nn.Module) -> str:
    return type(module).__module__.partition(".")[0]
