"""Every key of a sweep or of a site file: meaning, type, default and example.

Meanings are the docstrings of the settings' classes. `gnnhpc schema sweep --table` prints these
rows, and the reference pages of the documentation contain them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gnnhpc.core.settings import Strict
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.link_prediction import Links
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.optimizers.optimizer import OptimizerConfig
from gnnhpc.optimizers.registry import LR_SCHEDULES, OPTIMIZERS, lr_schedule_class, optimizer_class
from jobs.sweep.sweep import AXES, Grid, Sweep
from jobs.sweep.sweep_schema import plain_schema

REQUIRED = "required"
EXAMPLES = {
    "Sweep": {
        "name": "gat-on-cora",
        "description": "GAT on Cora as a pipeline.",
        "data_root": "/data/graphs",
        "defaults": "{train_steps: 50}",
        "grids": "[{models: [gat], data: [cora], layouts: [seq, pp2]}]",
    },
    "Grid": {
        "repeats": "5",
        "seq_microbatches": "[1, 4]",
        "models": "[gat, {name: gcn, layers: 3}]",
        "data": "[cora, {name: synthetic-citation, nodes: 2000}]",
        "layouts": "[seq, pp2, dp2-pp2]",
        "microbatches": "[2, 4]",
        "schedules": "[gpipe, 1f1b]",
        "virtual_stages": "2",
        "bucket_mib": "0.5",
        "batch_size": "100",
        "train_steps": "100",
        "test_steps": "5",
        "test_every": "10",
        "warmup_steps": "5",
        "optimizer": "{lr: 0.005, weight_decay: 5.0e-4}",
        "sampling": "{fanouts: [10, 10]}",
        "task": "{name: links}",
        "balance": "[1, 2]",
        "seeds": "[0, 1, 2]",
        "profile_steps": "10",
        "save_every": "100",
    },
    "OptimizerConfig": {
        "name": "adamw",
        "lr": "0.01",
        "lr_schedule": "{name: cosine, final: 0.1}",
        "weight_decay": "5.0e-4",
        "clip_norm": "1.0",
    },
    "Sgd": {"momentum": "0.9"},
    "StepDecay": {"every": "30", "gamma": "0.5"},
    "Cosine": {"final": "0.1"},
    "Warmup": {"steps": "10", "then": "cosine"},
    "Sampling": {"fanouts": "[25, 10]", "workers": "0"},
    "Links": {"embedding": "128", "negatives": "5", "val_share": "0.1", "hits": "50"},
    "Site": {
        "partition": "compute",
        "account": "proj42",
        "qos": "normal",
        "constraint": "zen3",
        "gres": "gpu:a100:2",
        "gpus_per_node": "2",
        "cpus_per_task": "8",
        "tasks_per_node": "2",
        "mem": "64G",
        "exclusive": "true",
        "hint": "nomultithread",
        "cpu_bind": "cores",
        "slurm": "{reservation: benchmarks}",
        "time": '"2:00:00"',
        "modules": "[gcc/12]",
        "setup": '["ulimit -c 0"]',
        "activate": "source /home/me/gnnhpc/.venv/bin/activate",
        "python": "/opt/python/bin/python3",
        "container": "apptainer exec image.sif",
        "interface": "ib0",
        "scratch": "/scratch/me",
        "max_parallel": "4",
        "max_array_size": "1001",
        "signal": "120",
        "max_requeues": "2",
    },
}
"""Class -> key -> an example in YAML, where the type alone does not make a good one."""
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
    example: str
    meaning: str


def sweep_rows() -> list[tuple[str, list[SettingRow]]]:
    """The keys of a sweep, by the place where they stand."""
    return [
        ("A sweep", list(setting_rows(Sweep))),
        ("`defaults` and each grid", list(_grid_rows())),
        ("`optimizer`", _optimizer_rows()),
        ("`optimizer.lr_schedule`", _lr_schedule_rows()),
        ("`sampling`", list(setting_rows(Sampling))),
        ("`task`", list(setting_rows(Links))),
    ]


def _optimizer_rows() -> list[SettingRow]:
    """The keys of every optimizer, then those of each."""
    rows = list(setting_rows(OptimizerConfig))
    for name in OPTIMIZERS:
        kind = optimizer_class(name)
        own = setting_rows(kind) if kind is not None else ()
        rows += [_of(name, row) for row in own if row.key not in OptimizerConfig.model_fields]
    return rows


def _lr_schedule_rows() -> list[SettingRow]:
    """The keys of each learning-rate schedule."""
    rows: list[SettingRow] = []
    for name in LR_SCHEDULES:
        kind = lr_schedule_class(name)
        own = setting_rows(kind) if kind is not None else ()
        rows += [_of(name, row) for row in own if row.key != "name"]
    return rows


def _of(name: str, row: SettingRow) -> SettingRow:
    return replace(row, meaning=f"{name}: {row.meaning}")


def setting_rows(cls: type[BaseModel]) -> Iterator[SettingRow]:
    """A row for each field of a class of settings."""
    properties = plain_schema(cls)["properties"]
    for name, field in cls.model_fields.items():
        yield _row(cls, name, field, properties.get(name, {}))


def _grid_rows() -> Iterator[SettingRow]:
    """The keys of a grid, with the defaults that an experiment has for them."""
    properties = plain_schema(Grid)["properties"]
    fields = {AXES.get(name, name): each for name, each in Experiment.model_fields.items()}
    for name, field in Grid.model_fields.items():
        yield _row(Grid, name, fields.get(name, field), properties[name])


def _row(
    cls: type[BaseModel], name: str, field: FieldInfo, schema: Mapping[str, Any]
) -> SettingRow:
    required = field.is_required()
    default = REQUIRED if required else _text(field.get_default(call_default_factory=True))
    meaning = " ".join((field.description or "").split())
    example = EXAMPLES.get(cls.__name__, {}).get(name) or _example(schema, default)
    return SettingRow(name, kind_of(schema), default, f"{name}: {example}", meaning)


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


def _example(schema: Mapping[str, Any], default: str) -> str:
    """A value that differs from the default where the schema names some."""
    choices = [_text(each) for each in _choices(schema)]
    others = [each for each in choices if each != default]
    if others:
        return others[0]
    return {"true": "false", "false": "true", "none": "1"}.get(default, default)


def _choices(schema: Mapping[str, Any]) -> Iterator[Any]:
    yield from schema.get("enum", ())
    for each in schema.get("anyOf", ()):
        yield from _choices(each)


def _text(value: object) -> str:
    """A value as YAML has it in one line; `none` for a missing one."""
    if value is None:
        return "none"
    if isinstance(value, Strict):
        return "its defaults"
    if isinstance(value, bool | int | float | str):
        return yaml.safe_dump(value).splitlines()[0]
    if isinstance(value, list | tuple | dict):
        plain = list(value) if isinstance(value, tuple) else value
        return yaml.safe_dump(plain, default_flow_style=True).strip()
    return str(value)
