"""Builds dataclasses from stored JSON: keys and types as they were written, or an error line."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from gnnhpc.core.pydantic_errors import input_error

Record = TypeVar("Record")


def build_record(cls: type[Record], raw: dict[str, Any], where: object) -> Record:
    """A dataclass with the fields in `raw`; raises InputError naming the first that does not fit.

    Unknown keys are refused where the class has `__pydantic_config__` say so.
    """
    try:
        record: Record = _adapter(cast("Hashable", cls)).validate_python(raw)
    except ValidationError as error:
        raise input_error(error, where) from None
    return record


@functools.cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)
