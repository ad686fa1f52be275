"""A planted defect, the registry of all of them, and what plants change code with."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from tests.defects.cells import Cell

Plant = Callable[..., None]
How = Literal["run", "beside", "resume", "files"]
"""`run`: one cell with the defect. `beside`: that cell and its sequential equivalent without the
defect, compared by the report. `resume`: a first attempt stops at a checkpoint, and the defect is
in the second one. `files`: the plant changes the run folder of cells that ran without a defect."""


@dataclass(frozen=True)
class Defect:
    """A change of our code that every rank of a run makes before it starts.

    `mechanism` is the one that must name it, `words` are part of the cause that it must give.
    """

    kind: str
    name: str
    plant: Plant
    cell: Cell
    mechanism: str
    words: str
    how: How = "run"


DEFECTS: dict[str, Defect] = {}
"""All defects by name, in the order of their files."""


def planted(
    kind: str,
    cell: Cell,
    mechanism: str,
    words: str,
    how: How = "run",
    at: tuple[Any, str] | None = None,
) -> Callable[[Plant], Plant]:
    """Register a function as the plant of a defect, or as what is called in place of `at`.

    The function's name is the defect's. `at` names a function by its owner; what is called in its
    place gets it and its arguments.
    """

    def register(function: Plant) -> Plant:
        name = function.__name__.replace("_", " ")
        assert name not in DEFECTS, name
        plant = function if at is None else functools.partial(around, *at, function)
        DEFECTS[name] = Defect(kind, name, plant, cell, mechanism, words, how)
        return function

    return register


def rank() -> int:
    """The rank of this process."""
    return int(os.environ["RANK"])


def around(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace `owner.name` by `change(original, *args, **kwargs)`."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(original, *args, **kwargs)

    replace(owner, name, changed)


def replace(owner: Any, name: str, new: Any) -> None:
    """Set `owner.name`; a function also in every module of gnnhpc that has imported it."""
    original = getattr(owner, name)
    setattr(owner, name, new)
    if isinstance(owner, type):
        return
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("gnnhpc.") and getattr(module, name, None) is original:
            setattr(module, name, new)
