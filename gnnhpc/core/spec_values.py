"""How a name, or a mapping with a name, in a spec becomes typed settings."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection

from pydantic import BaseModel


def parse_named(
    value: object, class_of: Callable[[str], type[BaseModel] | None], allowed: str
) -> object:
    """For pydantic: the settings of what `value` names; other types are returned unchanged.

    A name alone stands for its defaults. Raises ValueError, as `key: found ...; allowed: ...`,
    for an unknown name or key, and pydantic's ValidationError for a value that does not fit.
    """
    if isinstance(value, str):
        value = {"name": value}
    if not isinstance(value, dict):
        return value
    name = value.get("name")
    found = class_of(name) if isinstance(name, str) else None
    if found is None:
        words = "nothing" if name is None else repr(name)
        raise ValueError(f"name: found {words}; allowed: {allowed}")
    if found.model_config.get("extra") != "allow":
        for key in value.keys() - found.model_fields.keys():
            keys = ", ".join(sorted(found.model_fields))
            words = unknown_key_text(str(key), found.model_fields)
            raise ValueError(f"{key}: found {words}; allowed: {keys}")
    return found.model_validate(value)


def unknown_key_text(name: str, allowed: Collection[str]) -> str:
    """`an unknown key`, with the most similar allowed one if there is any."""
    close = difflib.get_close_matches(name, list(allowed), n=1)
    return "an unknown key" + (f" (is {close[0]} meant?)" if close else "")
