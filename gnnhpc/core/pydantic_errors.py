"""pydantic's errors as the one line of an InputError."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gnnhpc.core.errors import InputError


def input_error(
    error: ValidationError, where: object, known: type[BaseModel] | None = None
) -> InputError:
    """The first of pydantic's errors as one line: file, key, what was found, what is allowed.

    `known` is the class that was to be built, to say which keys it has.
    """
    details = error.errors(include_url=False)
    first = details[0]
    key = _key(first)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return _as_line(where, key, message)
    if first["type"] == "extra_forbidden":
        allowed = _keys_beside(first["loc"], known)
        return InputError(where, key, "an unknown key", allowed or "the documented keys")
    if first["type"] == "missing":
        return InputError(where, key, "nothing", "a value, this key is required")
    # Each choice of a union has an error of its own: what any of them allows is allowed.
    choices = [_allowed(other) for other in details if _key(other) == key]
    allowed = " or ".join(dict.fromkeys(choices))
    return InputError(where, key, _short(first["input"]), allowed)


# pydantic's error type -> what is allowed, to be filled from the error's context.
_ALLOWED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "text of at least {min_length} character",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length} of them",
    "unexpected_keyword_argument": "no such key",
}


def _allowed(error: ErrorDetails) -> str:
    text = _ALLOWED.get(error["type"])
    return text.format(**error.get("ctx", {})) if text else error["msg"]


def _key(error: ErrorDetails) -> str | None:
    parts = [str(part) for part in error["loc"] if not _is_tag(part)]
    if len(parts) > 1 and parts[-1] in _PLAIN_TYPES:
        del parts[-1]
    return ".".join(parts) or None


def _short(value: object) -> str:
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= 80 else text[:77] + "..."


def _keys_beside(location: tuple[int | str, ...], known: type[BaseModel] | None) -> str | None:
    """The keys that are allowed where `location` ends."""
    for part in location[:-1]:
        field = known.model_fields.get(str(part)) if known else None
        inner = field.annotation if field else None
        known = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None
    return ", ".join(sorted(known.model_fields)) if known else None


def _as_line(where: object, key: str | None, message: str) -> InputError:
    prefix, _, rest = message.partition("found ")
    inner = prefix.strip().rstrip(":")
    found, _, allowed = rest.partition("; allowed: ")
    full = ".".join(part for part in (key, inner) if part) or None
    return InputError(where, full, found or None, allowed or None)


_PLAIN_TYPES = ("bool", "int", "str")
"""Which a union of them puts behind the key."""


def _is_tag(part: int | str) -> bool:
    # A union of plain types names its choices, such as literal['cost','profile'].
    return isinstance(part, str) and "[" in part
