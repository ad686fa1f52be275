"""Errors in specs and site files: file, key, what was found and what is allowed, on one line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import input_error, unknown_key_text


def check_keys(
    mapping: Mapping[str, Any], allowed: Collection[str], where: object, key: str | None
) -> None:
    """Raises InputError for the first key that is not allowed, with the most similar one."""
    for name in mapping:
        if name not in allowed:
            full = f"{key}.{name}" if key else str(name)
            found = unknown_key_text(str(name), allowed)
            raise InputError(where, full, found, ", ".join(sorted(allowed)))


def as_mapping(value: object, where: object, key: str) -> dict[str, Any]:
    """`value` if it is a mapping with text keys; raises InputError for anything else."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise InputError(where, key, short_value(value), "a mapping of keys to values")
    return value


def short_value(value: object) -> str:
    """A value as an error shows it: short, on one line."""
    if value is None:
        return "nothing"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def from_validation_error(
    error: ValidationError, where: object, key: str = "", known: type[BaseModel] | None = None
) -> InputError:
    """The first error that pydantic found, as an InputError; `key` comes before its own key."""
    plain = input_error(error, where, known)
    inner = ".".join(part for part in (key, plain.key) if part)
    return InputError(where, inner or None, plain.found, plain.allowed)
