"""What a planted defect is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.defects.settings import Setting

Plant = Callable[[], None]


@dataclass(frozen=True)
class Defect:
    """A change of our code that every rank of one run makes before it starts."""

    name: str
    kind: str
    """The class it belongs to."""
    setting: Setting
    plant: Plant


DEFECTS: dict[str, Defect] = {}
"""By name, in the order of their files."""


def planted(name: str, kind: str, setting: Setting) -> Callable[[Plant], Plant]:
    """Registers a function as the plant of a defect."""

    def register(plant: Plant) -> Plant:
        assert name not in DEFECTS, name
        DEFECTS[name] = Defect(name, kind, setting, plant)
        return plant

    return register
