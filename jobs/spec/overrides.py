"""`--set key=value`: puts values into the defaults and grids of a spec."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from gnnhpc.core.errors import InputError
from jobs.spec.spec_errors import short_value, unknown_key_text
from jobs.spec.sweep import AXES, GRID_KEYS, SINGULAR, Sweep, config_class
from jobs.spec.yaml_file import parse_yaml

_FLAG = "--set"
_TOP_LEVEL_KEYS = Sweep.model_fields.keys() - {"defaults", "grids"}
_NESTED = ("model", "data", "optimizer", "sampling")


def apply_overrides(raw: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of `raw` with every override in it; raises InputError for an unknown key.

    `train_steps=5` replaces the value everywhere; `data.train=100` changes every data set that
    has this field; `grids.0.repeats=2` and `defaults.seed=1` mean one place alone. The settings of
    a user's own model are not known here: `model.heads=4` changes it where the spec gives it
    `heads`, or where no built-in model of the sweep has this field. A key is set once.
    """
    result = copy.deepcopy(raw)
    before: dict[tuple[str, ...], str] = {}
    for override in overrides:
        key, sign, text = override.partition("=")
        key = key.strip()
        if not sign or not key:
            raise InputError(_FLAG, None, repr(override), "key=value, such as train_steps=5")
        place = tuple(AXES.get(part, part) for part in key.split("."))
        if place in before:
            found = f"{override!r} and {before[place]!r}"
            raise InputError(_FLAG, key, found, "each key once")
        before[place] = override
        _set(result, key, parse_yaml(text, f"{_FLAG} {key}"))
    return result


def _set(raw: dict[str, Any], key: str, value: Any) -> None:
    first, *rest = key.split(".")
    if first in _TOP_LEVEL_KEYS and not rest:
        raw[first] = value
    elif first == "defaults" and rest:
        _set_in_one_place(raw.setdefault("defaults", {}), rest, value, key)
    elif first == "grids" and len(rest) > 1:
        _set_in_one_place(_grid(raw, rest[0], key), rest[1:], value, key)
    elif first not in GRID_KEYS:
        allowed = GRID_KEYS | _TOP_LEVEL_KEYS
        raise InputError(_FLAG, key, unknown_key_text(first, allowed), ", ".join(sorted(allowed)))
    elif not rest:
        _set_everywhere(raw, first, value)
    elif AXES.get(first, first) in _NESTED and len(rest) == 1:
        _set_field(raw, AXES.get(first, first), rest[0], value, key)
    else:
        allowed_text = "model.<field>, data.<field>, optimizer.<field>, sampling.<field> or a key "
        allowed_text += "without dots"
        raise InputError(_FLAG, key, "an unknown key", allowed_text)


def _set_everywhere(raw: dict[str, Any], name: str, value: Any) -> None:
    for number, mapping in enumerate(_defaults_and_grids(raw)):
        held = [alias for alias in _aliases(name) if alias in mapping]
        for alias in held:
            del mapping[alias]
        if held or number == 0:
            mapping[name] = value


def _set_field(raw: dict[str, Any], field: str, name: str, setting: Any, key: str) -> None:
    if field == "optimizer":
        for number, mapping in enumerate(_defaults_and_grids(raw)):
            if number == 0 or "optimizer" in mapping:
                entry = mapping.setdefault("optimizer", {})
                if isinstance(entry, dict):
                    entry[name] = setting
        return
    if field == "sampling":
        for mapping in _defaults_and_grids(raw):
            value = mapping.get("sampling")
            for entry in value if isinstance(value, list) else [value]:
                if isinstance(entry, dict):
                    entry[name] = setting
        return
    entries = [(e, config_class(field, e.get("name"))) for e in _entries(raw, field)]
    known = {key for _, cls in entries if cls for key in cls.model_fields}
    typed = [entry for entry, cls in entries if cls and name in cls.model_fields]
    own = [entry for entry, cls in entries if cls and cls.model_config.get("extra") == "allow"]
    taking = typed + [entry for entry in own if name in entry or not typed]
    if not taking:
        raise InputError(_FLAG, key, unknown_key_text(name, known), ", ".join(sorted(known)))
    for entry in taking:
        entry[name] = setting


def _entries(raw: dict[str, Any], field: str) -> Iterator[dict[str, Any]]:
    """Every model (or data set) of the spec, as a mapping that can be changed in place."""
    for mapping in _defaults_and_grids(raw):
        for alias in _aliases(field):
            if alias not in mapping:
                continue
            value = mapping[alias]
            entries = list(value) if isinstance(value, list) else [value]
            entries = [{"name": e} if isinstance(e, str) else e for e in entries]
            mapping[alias] = entries
            yield from (entry for entry in entries if isinstance(entry, dict))


def _defaults_and_grids(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """The defaults, then every grid."""
    grids = raw.get("grids")
    candidates = [raw.setdefault("defaults", {}), *(grids if isinstance(grids, list) else [])]
    return [place for place in candidates if isinstance(place, dict)]


def _aliases(name: str) -> tuple[str, ...]:
    field = AXES.get(name, name)
    return tuple({field, SINGULAR.get(field, field)})


def _grid(raw: dict[str, Any], number: str, key: str) -> dict[str, Any]:
    grids = raw.get("grids")
    count = len(grids) if isinstance(grids, list) else 0
    if not number.isdigit() or int(number) >= count or not isinstance(grids, list):
        raise InputError(_FLAG, key, f"grid {number}", f"0 to {count - 1}")
    grid: dict[str, Any] = grids[int(number)]
    return grid


def _set_in_one_place(mapping: dict[str, Any], path: Sequence[str], value: Any, key: str) -> None:
    if not isinstance(mapping, dict):
        raise InputError(_FLAG, key, short_value(mapping), "a mapping in the spec")
    if path[0] not in GRID_KEYS:
        raise InputError(
            _FLAG, key, unknown_key_text(path[0], GRID_KEYS), ", ".join(sorted(GRID_KEYS))
        )
    if len(path) == 1:
        for alias in _aliases(path[0]):
            mapping.pop(alias, None)
        mapping[path[0]] = value
    elif len(path) == 2 and AXES.get(path[0], path[0]) in _NESTED:
        _set_field({"defaults": mapping}, AXES.get(path[0], path[0]), path[1], value, key)
    else:
        raise InputError(_FLAG, key, "an unknown key", "a key of a grid, or one inside it")
