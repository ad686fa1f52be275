"""Typed settings: their base class, their numbers, names and paths, and errors in one line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from gnnhpc.core.errors import InputError

Settings = TypeVar("Settings", bound=BaseModel)


class Strict(BaseModel):
    """Unknown keys are errors, values never change after checking."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


# YAML's `yes` must not count as 1.
Whole = Annotated[int, Field(strict=True, le=2**63 - 1)]
"""At most the largest integer of arrays, tables and C."""
Positive = Annotated[Whole, Field(ge=1)]
Steps = Annotated[Whole, Field(le=2**31 - 1)]
Seed = Annotated[int, Field(strict=True, ge=0, le=2**64 - 1)]
"""torch's generators take no larger seed, and the sampler's key has 64 bits."""
Layers = Annotated[Whole, Field(le=2_000)]
"""Layers of a model; balancing takes a time that grows with their square."""
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


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
            words, keys = _unknown_key(str(key), found.model_fields)
            raise ValueError(f"{key}: found {words}; allowed: {keys}")
    return found.model_validate(value)


def build_strictly(
    cls: type[Settings], raw: object, where: object, below: str | None = None
) -> Settings:
    """Settings of plain data, as YAML has them; raises InputError for the first mistake."""
    try:
        # As JSON, since a strict check in Python would refuse a list where a tuple is meant.
        return cls.model_validate_json(json.dumps(raw), strict=True)
    except ValidationError as error:
        raise input_error(error, where, cls, below) from None


def expand_user(path: str | Path, where: object, key: str | None = None) -> Path:
    """`path` with ~ and ~name replaced; raises InputError for an unknown user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        found = f"{path}, of a user that this machine does not know"
        raise InputError(where, key, found, "a path without ~, or of a known user") from None


def input_error(
    error: ValidationError,
    where: object,
    known: type[BaseModel] | None = None,
    below: str | None = None,
) -> InputError:
    """The first of pydantic's errors as one line: file, key, what was found, what is allowed.

    `known` is the class that was to be built; the message lists its keys. `below` is the key that
    holds its settings.
    """
    details = error.errors(include_url=False)
    unknown = [each for each in details if each["type"] == "extra_forbidden"]
    first = [*unknown, *details][0]
    inner = _key(first)
    key = ".".join(part for part in (below, inner) if part) or None
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return _as_line(where, key, message)
    if unknown:
        return InputError(where, key, *_unknown_key(*_last_key(first["loc"], known)))
    if first["type"] == "missing":
        return InputError(where, key, "nothing", "a value, this key is required")
    # pydantic reports an error for each choice of a union; the line allows what any of them allows.
    choices = [_allowed(other) for other in details if _key(other) == inner]
    allowed = " or ".join(dict.fromkeys(choices))
    return InputError(where, key, short_value(first["input"]), allowed)


# pydantic's error type, or how it begins -> what is allowed, to be filled from the error's context.
_ALLOWED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string_type": "text",
    "string_too_short": "text of at least {min_length} character",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping of keys to values",
    "model": "a mapping of keys to values",
    "literal": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length} of them",
    "unexpected_keyword_argument": "no such key",
}


def _allowed(error: ErrorDetails) -> str:
    kind = error["type"]
    text = _ALLOWED.get(kind) or _ALLOWED.get(kind.partition("_")[0])
    return text.format(**error.get("ctx", {})) if text else error["msg"]


def _key(error: ErrorDetails) -> str | None:
    parts = [str(part) for part in error["loc"] if not _is_tag(part)]
    if len(parts) > 1 and parts[-1] in _PLAIN_TYPES:
        del parts[-1]
    return ".".join(parts) or None


def short_value(value: object) -> str:
    """A value as an error shows it: short, on one line."""
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= 80 else text[:77] + "..."


def _last_key(location: tuple[int | str, ...], known: Any) -> tuple[str, Collection[str]]:
    """The key where `location` ends in settings of class `known`, and those that may be there."""
    *parents, last = location
    for part in parents:
        field = getattr(known, "model_fields", {}).get(part)
        if field is not None:
            # A list or a mapping has settings in it, and others may be missing.
            kinds = [*get_args(field.annotation), field.annotation]
            known = next(filter(lambda kind: hasattr(kind, "model_fields"), kinds), None)
    return str(last), getattr(known, "model_fields", {})


def _unknown_key(name: str, allowed: Collection[str]) -> tuple[str, str]:
    """What was found, with the most similar allowed key if there is any, and what is allowed."""
    close = difflib.get_close_matches(name, list(allowed), n=1)
    found = "an unknown key" + (f" (is {close[0]} meant?)" if close else "")
    return found, ", ".join(sorted(allowed)) or "the documented keys"


def _as_line(where: object, key: str | None, message: str) -> InputError:
    prefix, _, rest = message.partition("found ")
    inner = prefix.strip().rstrip(":")
    found, _, allowed = rest.partition("; allowed: ")
    full = ".".join(part for part in (key, inner) if part) or None
    return InputError(where, full, found or None, allowed or None)


_PLAIN_TYPES = ("bool", "int", "str")
"""Names that a union of these types appends to the key."""


def _is_tag(part: int | str) -> bool:
    # A union of plain types names its choices, such as literal['cost','profile'].
    return isinstance(part, str) and "[" in part
