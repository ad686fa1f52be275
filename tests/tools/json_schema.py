"""Whether JSON data fit a schema, as far as our schemas go; other keywords are an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_TYPES: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None),
}  # fmt: skip
_SAY_NOTHING = {"$schema", "$defs", "title", "description", "default"}


def mistakes(data: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> list[str]:
    """What does not fit, a line each; none for data that fit."""
    return list(_mistakes(data, schema, root or schema, "top"))


def _mistakes(data: Any, schema: dict[str, Any], root: dict[str, Any], at: str) -> Iterator[str]:
    for keyword, value in schema.items():
        if keyword in _SAY_NOTHING:
            continue
        check = _CHECKS.get(keyword)
        assert check is not None, f"{keyword} of {at} is not known here"
        yield from check(data, value, schema, root, at)


def _ref(data: Any, value: str, schema: Any, root: Any, at: str) -> Iterator[str]:
    assert value.startswith("#/$defs/"), value
    yield from _mistakes(data, root["$defs"][value.removeprefix("#/$defs/")], root, at)


def _type(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    names = [value] if isinstance(value, str) else value
    if not any(_is(data, name) for name in names):
        yield f"{at}: {data!r} is no {value}"


def _is(data: Any, name: str) -> bool:
    number = isinstance(data, int | float) and not isinstance(data, bool)
    if name == "number":
        return number
    if name == "integer":
        return number and float(data).is_integer()
    return isinstance(data, _TYPES[name])


def _enum(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    if not any(data == one and type(data) is type(one) for one in value):
        yield f"{at}: {data!r} is none of {value}"


def _const(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    yield from _enum(data, [value], schema, root, at)


def _any_of(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    if all(any(_mistakes(data, one, root, at)) for one in value):
        yield f"{at}: {data!r} fits none"


def _pattern(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    if isinstance(data, str) and not re.search(value, data):
        yield f"{at}: {data!r} is not as {value}"


def _bound(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    if _is(data, "number"):
        low, above = schema.get("minimum", data), schema.get("exclusiveMinimum")
        high, below = schema.get("maximum", data), schema.get("exclusiveMaximum")
        fits = low <= data <= high
        if (
            not fits
            or (above is not None and data <= above)
            or (below is not None and data >= below)
        ):
            yield f"{at}: {data!r} is out of bounds"


def _size(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    fewest = {list: "minItems", dict: "minProperties", str: "minLength"}.get(type(data), "")
    most = {list: "maxItems"}.get(type(data), "")
    if fewest and not schema.get(fewest, 0) <= len(data) <= schema.get(most, len(data)):
        yield f"{at}: {len(data)} items"


def _items(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    if isinstance(data, list):
        for number, one in enumerate(data):
            yield from _mistakes(one, value, root, f"{at}.{number}")


def _required(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    if isinstance(data, dict):
        yield from (f"{at}: no {name}" for name in value if name not in data)


def _properties(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    if isinstance(data, dict):
        for name in data.keys() & value.keys():
            yield from _mistakes(data[name], value[name], root, f"{at}.{name}")


def _by_pattern(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    for name in data if isinstance(data, dict) else ():
        for pattern, one in value.items():
            if re.search(pattern, name):
                yield from _mistakes(data[name], one, root, f"{at}.{name}")


def _others(data: Any, value: Any, schema: Any, root: Any, at: str) -> Iterator[str]:
    if not isinstance(data, dict):
        return
    patterns = schema.get("patternProperties", {})
    for name in data.keys() - schema.get("properties", {}).keys():
        if any(re.search(pattern, name) for pattern in patterns):
            continue
        if value is False:
            yield f"{at}: {name} is not known"
        elif value is not True:
            yield from _mistakes(data[name], value, root, f"{at}.{name}")


_CHECKS = {
    "$ref": _ref, "type": _type, "enum": _enum, "const": _const, "anyOf": _any_of,
    "pattern": _pattern, "items": _items, "required": _required, "properties": _properties,
    "additionalProperties": _others, "patternProperties": _by_pattern,
    "minItems": _size, "maxItems": _size, "minProperties": _size, "minLength": _size,
    "minimum": _bound, "maximum": _bound, "exclusiveMinimum": _bound, "exclusiveMaximum": _bound,
}  # fmt: skip
