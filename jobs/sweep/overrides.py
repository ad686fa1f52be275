"""`--set key=value`: puts values into the defaults and grids of a spec."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import unknown_key_text
from gnnhpc.data.registry import data_class
from gnnhpc.experiment.yaml_file import parse_yaml
from gnnhpc.models.model_registry import model_class
from jobs.sweep.sweep import Grid

_FLAG = "--set"
_CLASS_OF = {"models": model_class, "data": data_class}
_INSIDE = (*_CLASS_OF, "optimizer", "sampling")
"""Keys whose values have settings of their own."""
Places = Sequence[dict[str, Any]]
"""The defaults and the grids, or one of them."""


def apply_overrides(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of a correct spec with every override in it.

    `train_steps=5` replaces the value everywhere; `data.train=100` changes every data set that has
    this setting, and `models.heads=4` every model that has it, custom ones too;
    `grids.0.repeats=2` changes one grid. Raises InputError for an unknown key.
    """
    result: dict[str, Any] = copy.deepcopy(dict(raw))
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key.strip():
            raise InputError(_FLAG, None, repr(override), "key=value, such as train_steps=5")
        _set(result, key.strip(), parse_yaml(text, f"{_FLAG} {key.strip()}"))
    return result


def _set(raw: dict[str, Any], key: str, value: Any) -> None:
    grids = raw["grids"]
    places, path = [raw.setdefault("defaults", {}), *grids], key.split(".")
    if path[0] == "grids" and len(path) > 2:
        if not path[1].isdigit() or int(path[1]) >= len(grids):
            raise InputError(_FLAG, key, f"grid {path[1]}", f"0 to {len(grids) - 1}")
        places, path = [grids[int(path[1])]], path[2:]
    name, *inner = path
    if name not in Grid.model_fields:
        allowed = sorted(Grid.model_fields)
        raise InputError(_FLAG, key, unknown_key_text(name, allowed), ", ".join(allowed))
    if not inner:
        for number, place in enumerate(places):
            if name in place or number == 0:
                place[name] = value
    elif name in _INSIDE and len(inner) == 1:
        for entry in _entries_with(places, name, inner[0], key):
            entry[inner[0]] = value
    else:
        allowed_text = ", ".join(f"{each}.<setting>" for each in _INSIDE)
        raise InputError(_FLAG, key, "an unknown key", f"{allowed_text} or a key without dots")


def _entries_with(places: Places, name: str, setting: str, key: str) -> list[dict[str, Any]]:
    """The mappings in which a setting is to be set. Raises InputError where none has it."""
    if name == "optimizer":
        places[0].setdefault("optimizer", {})
    entries = [entry for place in places if name in place for entry in _entries(place, name)]
    if name not in _CLASS_OF:
        return entries
    classes = [(entry, _CLASS_OF[name](str(entry.get("name")))) for entry in entries]
    taking = [
        entry
        for entry, cls in classes
        if cls and (setting in cls.model_fields or cls.model_config.get("extra") == "allow")
    ]
    if not taking:
        known = {field for _, cls in classes if cls for field in cls.model_fields}
        raise InputError(_FLAG, key, unknown_key_text(setting, known), ", ".join(sorted(known)))
    return taking


def _entries(place: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Every value of a key as a mapping that can be changed in place."""
    values = place[name] if isinstance(place[name], list) else [place[name]]
    values = [{"name": each} if isinstance(each, str) else each for each in values]
    place[name] = values if isinstance(place[name], list) else values[0]
    return [entry for entry in values if isinstance(entry, dict)]
