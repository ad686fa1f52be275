"""Every key of a sweep or of a site file: its type, default and meaning.

Meanings are the docstrings of the settings' classes. `gnnhpc schema sweep --table` prints these
rows, and the reference pages of the documentation contain them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from pydantic import BaseModel

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.link_prediction import Links
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.optimizers.optimizer import OptimizerConfig
from gnnhpc.optimizers.registry import LR_SCHEDULES, OPTIMIZERS, lr_schedule_class, optimizer_class
from jobs.sweep.sweep import AXES, Grid, Sweep
from jobs.sweep.sweep_schema import plain_schema

REQUIRED = "required"
_WORDS = {
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "string": "text",
    "object": "mapping",
    "null": "none",
}


@dataclass(frozen=True)
class SettingRow:
    """One key; `default` is `required` where it must be set."""

    key: str
    kind: str
    default: str
    meaning: str


def sweep_rows() -> list[tuple[str, list[SettingRow]]]:
    """The keys of a sweep, by the place where they stand."""
    defaults: dict[str, Any] = {
        AXES.get(name, name): field.get_default(call_default_factory=True)
        for name, field in Experiment.model_fields.items()
        if not field.is_required()
    }
    defaults["chunks"] = "halo"
    optimizers = [(name, optimizer_class(name)) for name in OPTIMIZERS]
    schedules = [(name, lr_schedule_class(name)) for name in LR_SCHEDULES]
    known = OptimizerConfig.model_fields
    return [
        ("A sweep", list(setting_rows(Sweep))),
        ("`defaults` and each grid", list(setting_rows(Grid, defaults))),
        (
            "`optimizer`",
            [*setting_rows(OptimizerConfig, {"name": "adam"}), *_rows_of(optimizers, known)],
        ),
        ("`optimizer.lr_schedule`", _rows_of(schedules, ("name",))),
        ("`sampling`", list(setting_rows(Sampling))),
        ("`task`", list(setting_rows(Links))),
    ]


def setting_rows(
    cls: type[BaseModel], defaults: Mapping[str, Any] | None = None
) -> Iterator[SettingRow]:
    """A row for each field of a class of settings; `defaults` come before those of the class."""
    properties, known = plain_schema(cls)["properties"], defaults or {}
    for name, field in cls.model_fields.items():
        default = REQUIRED
        if name in known or not field.is_required():
            default = _text(known.get(name, field.get_default(call_default_factory=True)))
        if cls is Grid and name in ("models", "data"):
            default = REQUIRED
        meaning = " ".join((field.description or "").split())
        yield SettingRow(name, kind_of(properties[name]), default, meaning)


def _rows_of(
    classes: list[tuple[str, Any]], without: Mapping[str, Any] | tuple[str, ...]
) -> list[SettingRow]:
    """The keys of each class that the others do not have, with its name in the meaning."""
    return [
        replace(row, meaning=f"{name}: {row.meaning}")
        for name, cls in classes
        for row in setting_rows(cls)
        if row.key not in without
    ]


def kind_of(schema: Mapping[str, Any]) -> str:
    """The type of a value in words, from its JSON Schema."""
    if "enum" in schema or "const" in schema:
        return " or ".join(map(str, schema.get("enum") or [schema["const"]]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2].lower()
    if "anyOf" in schema:
        first, *others = schema["anyOf"]
        if others == [{"type": "array", "items": first, "minItems": 1}]:
            return f"{kind_of(first)}; one or a list"
        kinds = [kind_of(each) for each in schema["anyOf"]]
        return " or ".join(dict.fromkeys(sorted(kinds, key=lambda kind: kind == "none")))
    if schema.get("type") == "array":
        inner = kind_of(schema.get("items", {}))
        return f"list of {inner}" if inner else "list"
    return _WORDS.get(str(schema.get("type")), "")


def _text(value: object) -> str:
    """A value as YAML has it in one line; `none` for a missing one."""
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, list | tuple | dict):
        return json.dumps(value)
    plain = isinstance(value, bool | int | float | str)
    return yaml.safe_dump(value).splitlines()[0] if plain else str(value)
