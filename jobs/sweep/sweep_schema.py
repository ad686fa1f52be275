"""The keys of sweep specs: a JSON Schema for editors, and tables for readers.

Both come from the classes that check a spec and the docstrings of their fields. What the schema
cannot say (that pp4 needs four layers, or images a batch_size) `submit --dry-run` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from gnnhpc.core.layout import ALLOWED as LAYOUTS_ALLOWED
from gnnhpc.data.registry import DATA
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.sampling import Links, Sampling
from gnnhpc.models.model_registry import BUILT_IN, model_class
from gnnhpc.optimizers.optimizer import LR_SCHEDULES, OPTIMIZERS, OptimizerConfig
from jobs.sweep.sweep import AXES, Grid, Sweep

Schema = dict[str, Any]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_CUSTOM_MODEL = r"^\w+(\.\w+)*:\w+$"
_LAYOUT: Schema = {
    "type": "string",
    "pattern": r"^(seq|pp[1-9][0-9]*|dp[1-9][0-9]*(-pp[1-9][0-9]*)?)$",
    "description": LAYOUTS_ALLOWED,
}


def sweep_schema() -> Schema:
    """The schema of a sweep: its names, lists of names, and entries with settings."""
    schema = plain_schema(Sweep)
    grid = schema["$defs"]["Grid"]["properties"]
    optimizers = list(OPTIMIZERS.values())
    grid["optimizer"] = {"anyOf": [_entry(cls) for cls in optimizers if cls is not None]}
    sampling = {"anyOf": [_entry(Sampling), {"type": "null"}]}
    several = {"type": "array", "items": sampling, "minItems": 1}
    grid["sampling"] |= {"anyOf": [*sampling["anyOf"], several]}
    schema["$defs"] |= {"model": _models(), "data": _data(), "layout": _LAYOUT}
    return {"$schema": DRAFT, "title": "gnnhpc sweep"} | schema


def plain_schema(cls: type[BaseModel]) -> Schema:
    """pydantic's schema of a class, with all references and without titles."""
    schema: Schema = _cleaned(cls.model_json_schema())
    schema.pop("description", None)
    return schema


def _entry(cls: type[BaseModel], **names: Schema) -> Schema:
    """The schema of settings of which only `name` is required, where its values are given.

    The other settings may come from the defaults of the sweep.
    """
    schema = plain_schema(cls)
    schema["properties"] |= names
    schema.pop("required", None)
    return schema | ({"required": ["name"]} if names else {})


def _models() -> Schema:
    custom = {
        "type": "object",
        "description": "A custom model, with its settings.",
        "properties": {"name": {"type": "string", "pattern": _CUSTOM_MODEL}},
        "required": ["name"],
    }
    name = {"anyOf": [{"enum": sorted(BUILT_IN)}, {"type": "string", "pattern": _CUSTOM_MODEL}]}
    classes = [(each, model_class(each)) for each in BUILT_IN]
    return {"anyOf": [name, *(_entry(c, name={"const": each}) for each, c in classes if c), custom]}


def _data() -> Schema:
    by_class: dict[type[BaseModel], list[str]] = {}
    for name in sorted(DATA):
        by_class.setdefault(DATA[name], []).append(name)
    entries = [_entry(cls, name={"enum": names}) for cls, names in by_class.items()]
    # The name `file` alone does not say which file.
    return {"anyOf": [{"enum": sorted(DATA.keys() - {"file"})}, *entries]}


def _cleaned(schema: Any) -> Any:
    """Without titles and null defaults, and with each description in one line."""
    if isinstance(schema, list):
        return [_cleaned(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    clean = {key: _cleaned(value) for key, value in schema.items() if key != "title"}
    if "x-named" in clean:
        clean["$ref"] = f"#/$defs/{clean.pop('x-named')}"
    if isinstance(clean.get("description"), str):
        clean["description"] = " ".join(clean["description"].split())
    if clean.get("default", "") is None:
        del clean["default"]
    return clean


def sweep_keys() -> Iterator[str]:
    """Every key of a sweep, as blocks of Markdown."""
    yield "# Sweeps"
    yield (
        "A sweep is a YAML file with `defaults` and `grids`. `gnnhpc schema sweep` prints a JSON "
        "Schema by which editors complete and check it."
    )
    yield "## A sweep"
    yield settings_table(Sweep)
    yield "## `defaults` and each grid"
    yield settings_table(Grid, {AXES.get(k, k): v for k, v in Experiment.model_fields.items()})
    yield "## `optimizer`"
    yield settings_table(OptimizerConfig)
    for name, optimizer in OPTIMIZERS.items():
        yield f"`{name}` has:"
        yield settings_table(optimizer, without=OptimizerConfig.model_fields)
    yield "## `optimizer.lr_schedule`"
    for name, schedule in LR_SCHEDULES.items():
        yield f"`{name}` has:"
        yield settings_table(schedule, without=("name",))
    yield "## `sampling`"
    yield settings_table(Sampling)
    yield "## `task`"
    yield settings_table(Links)


def settings_table(cls: Any, fields: Mapping[str, Any] = {}, without: Collection[str] = ()) -> str:
    """A table of a class's settings; the defaults of `fields` come before its own."""
    rows = []
    for key, field in cls.model_fields.items():
        if key not in without:
            first = fields.get(key, field)
            default = first.get_default(call_default_factory=True)
            shown = "none" if default is None else default
            if isinstance(default, BaseModel):
                shown = "its defaults"
            meaning = " ".join((field.description or "").split())
            if get_origin(first.annotation) is Literal:
                meaning += f" One of {', '.join(map(str, get_args(first.annotation)))}."
            rows.append((f"`{key}`", "required" if first.is_required() else f"`{shown}`", meaning))
    return markdown_table(("key", "default", "meaning"), rows) if rows else "No settings."


def markdown_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """A table of cells in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    escaped = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)
