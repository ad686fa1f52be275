"""`--set key=value` of `gnnhpc run` and `gnnhpc verify`: puts a value into an experiment."""

from __future__ import annotations

from typing import Any

import yaml

from gnnhpc.core.errors import InputError

_FLAG = "--set"
_NAMED = ("model", "data")


def apply_set_option(raw: dict[str, Any], override: str) -> None:
    """Set one key of `raw` in place; `model.blocks=4` sets a key of a mapping inside it.

    A model's or data set's name alone stands for its defaults.

    Raises InputError for text that is not key=value, a value that is not YAML, or a key inside
    something that is not a mapping.
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(_FLAG, None, repr(override), "key=value")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise InputError(_FLAG, key, repr(text), "a YAML value") from None
    if key in _NAMED and isinstance(value, str):
        value = {"name": value}
    *parents, last = key.split(".")
    mapping = raw
    for parent in parents:
        inner = mapping.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise InputError(_FLAG, key, f"{parent} is no mapping", "a key of the experiment")
        mapping = inner
    mapping[last] = value
