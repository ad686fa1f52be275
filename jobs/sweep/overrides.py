"""`--set key=value`: puts values into the defaults and grids of a spec."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import unknown_key_text
from gnnhpc.data.registry import data_class
from gnnhpc.experiment.yaml_file import parse_yaml
from gnnhpc.models.model_registry import model_class
from jobs.sweep.sweep import GRID_KEYS, SINGULAR, Sweep

_FLAG = "--set"
_TOP_LEVEL = Sweep.model_fields.keys() - {"defaults", "grids"}
_CLASS_OF = {"models": model_class, "data": data_class}
_NESTED = (*_CLASS_OF, "optimizer", "sampling")


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of a spec, as `plural_spec` returns it, with every override in it.

    `train_steps=5` replaces the value everywhere; `data.train=100` changes every data set that has
    this setting; `grids.0.repeats=2` and `defaults.seed=1` change one place. Settings of a custom
    model are not known here: `model.heads=4` changes it where the spec gives it `heads`, or where
    no built-in model of the sweep has this setting. Raises InputError for an unknown key and for a
    key that is set twice.
    """
    result = copy.deepcopy(raw)
    before: dict[tuple[str, ...], str] = {}
    for override in overrides:
        key, sign, text = override.partition("=")
        key = key.strip()
        if not sign or not key:
            raise InputError(_FLAG, None, repr(override), "key=value, such as train_steps=5")
        path = tuple(SINGULAR.get(part, part) for part in key.split("."))
        if path in before:
            found = f"{override!r} and {before[path]!r}"
            raise InputError(_FLAG, key, found, "each key once")
        before[path] = override
        _set(result, path, parse_yaml(text, f"{_FLAG} {key}"), key)
    return result


def _set(raw: dict[str, Any], path: Sequence[str], value: Any, key: str) -> None:
    first, *rest = path
    defaults, grids = raw.setdefault("defaults", {}), raw["grids"]
    if first in _TOP_LEVEL and not rest:
        raw[first] = value
    elif first == "defaults" and rest:
        _set_in([defaults], rest, value, key)
    elif first == "grids" and len(rest) > 1:
        if not rest[0].isdigit() or int(rest[0]) >= len(grids):
            raise InputError(_FLAG, key, f"grid {rest[0]}", f"0 to {len(grids) - 1}")
        _set_in([grids[int(rest[0])]], rest[1:], value, key)
    else:
        _set_in([defaults, *grids], path, value, key)


def _set_in(places: Sequence[dict[str, Any]], path: Sequence[str], value: Any, key: str) -> None:
    """Set a field, or a setting inside of one, in the first place and where others have it."""
    name, *rest = path
    if name not in GRID_KEYS:
        allowed = GRID_KEYS | _TOP_LEVEL
        raise InputError(_FLAG, key, unknown_key_text(name, allowed), ", ".join(sorted(allowed)))
    if not rest:
        for number, mapping in enumerate(places):
            if name in mapping or number == 0:
                mapping[name] = value
    elif name in _NESTED and len(rest) == 1:
        for entry in _entries_with(places, name, rest[0], key):
            entry[rest[0]] = value
    else:
        allowed_text = "model.<setting>, data.<setting>, optimizer.<setting>, sampling.<setting>"
        raise InputError(_FLAG, key, "an unknown key", f"{allowed_text} or a key without dots")


def _entries_with(
    places: Sequence[dict[str, Any]], name: str, setting: str, key: str
) -> list[dict[str, Any]]:
    """The mappings in which a setting is to be set. Raises InputError where none has it."""
    if name == "optimizer":
        places[0].setdefault("optimizer", {})
    entries = [entry for place in places if name in place for entry in _entries(place, name)]
    if name not in _CLASS_OF:
        return entries
    classes = [(entry, _CLASS_OF[name](str(entry.get("name")))) for entry in entries]
    custom = [entry for entry, cls in classes if cls and cls.model_config.get("extra") == "allow"]
    typed = [entry for entry, cls in classes if cls and setting in cls.model_fields]
    taking = typed + [entry for entry in custom if setting in entry or not typed]
    if not taking:
        known = {field for _, cls in classes if cls for field in cls.model_fields}
        raise InputError(_FLAG, key, unknown_key_text(setting, known), ", ".join(sorted(known)))
    return taking


def _entries(place: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Every value of a key as a mapping that can be changed in place."""
    value = place[name]
    several = list(value) if isinstance(value, list) else [value]
    several = [{"name": each} if isinstance(each, str) else each for each in several]
    place[name] = several if isinstance(value, list) else several[0]
    return [entry for entry in several if isinstance(entry, dict)]
