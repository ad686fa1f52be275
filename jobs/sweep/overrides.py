"""`--set key=value`: puts values into the defaults and grids of a spec."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.data.registry import DATA
from gnnhpc.experiment.yaml_file import parse_yaml
from gnnhpc.models.model_registry import model_class

FLAG = "--set"
_CLASS_OF: Mapping[str, Callable[[str], Any]] = {"models": model_class, "data": DATA.get}
_ALLOWED = (
    "models, data, optimizer or sampling with one of their settings, such as data.train, or a key "
    "without dots"
)


def apply_overrides(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of a correct spec with every override in it, to be checked like any spec.

    `train_steps=5` replaces the value everywhere; `data.train=100` changes every data set that has
    this setting, and `models.heads=4` every model that has it, custom ones too;
    `grids.0.repeats=2` changes one grid. Raises InputError for an override without a key or value,
    an unknown grid, and a setting of what the spec does not have.
    """
    result: dict[str, Any] = copy.deepcopy(dict(raw))
    for override in overrides:
        key, sign, text = override.partition("=")
        if not sign or not key.strip():
            raise InputError(FLAG, None, repr(override), "key=value, such as train_steps=5")
        _set(result, key.strip(), parse_yaml(text, f"{FLAG} {key.strip()}"))
    return result


def _set(raw: dict[str, Any], key: str, value: Any) -> None:
    grids = raw["grids"]
    places, path = [raw.setdefault("defaults", {}), *grids], key.split(".")
    if path[0] == "grids" and len(path) > 2:
        if not path[1].isdigit() or int(path[1]) >= len(grids):
            raise InputError(FLAG, key, f"grid {path[1]}", f"0 to {len(grids) - 1}")
        places, path = [grids[int(path[1])]], path[2:]
    name, *inner = path
    if not inner:
        for number, place in enumerate(places):
            if name in place or number == 0:
                place[name] = value
        return
    if name == "optimizer":
        places[0].setdefault(name, {})
    entries = [entry for place in places if name in place for entry in _entries(place, name)]
    if not entries or len(inner) > 1:
        raise InputError(FLAG, key, "no such setting in this sweep", _ALLOWED)
    # Where none of them has the setting, the check of the whole spec reports it.
    for entry in [entry for entry in entries if _has(name, entry, inner[0])] or entries:
        entry[inner[0]] = value


def _has(name: str, entry: Mapping[str, Any], setting: str) -> bool:
    """Whether the model or data set of an entry has a setting; other entries take any."""
    if name not in _CLASS_OF:
        return True
    cls = _CLASS_OF[name](str(entry.get("name")))
    return cls is not None and (
        setting in cls.model_fields or cls.model_config.get("extra") == "allow"
    )


def _entries(place: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Every value of a key as a mapping that can be changed in place."""
    values = place[name] if isinstance(place[name], list) else [place[name]]
    values = [{"name": each} if isinstance(each, str) else each for each in values]
    place[name] = values if isinstance(place[name], list) else values[0]
    return [entry for entry in values if isinstance(entry, dict)]
