"""JSON Schemas of the files that users write, from the models that check them.

Editors complete and check a file by its schema. What it cannot say (that pp4 needs four layers, or
images a batch_size) `submit --dry-run` and `site check` say.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter

from gnnhpc.core.layout import ALLOWED as LAYOUTS_ALLOWED
from gnnhpc.data.published import PUBLISHED
from gnnhpc.data.registry import DATA
from gnnhpc.experiment.experiment import Experiment, OptimizerConfig
from gnnhpc.experiment.links import Links
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.models.model_registry import BUILT_IN, model_class
from jobs.cluster.site import Site
from jobs.spec.sweep import AXES, GRID_KEYS, SINGULAR, Sweep

Schema = dict[str, Any]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_OWN_MODEL = r"^\w+(\.\w+)*:\w+$"
_LAYOUT: Schema = {
    "type": "string",
    "pattern": r"^(seq|pp[1-9][0-9]*|dp[1-9][0-9]*(-pp[1-9][0-9]*)?)$",
    "description": LAYOUTS_ALLOWED,
}


def sweep_schema() -> Schema:
    """Of a sweep: names, lists of names, and entries with settings, a user's own model's too."""
    grid = {"$ref": "#/$defs/grid"}
    top = _properties(Sweep, {"defaults": grid, "grids": {"type": "array", "items": grid}})
    top["grids"]["minItems"] = 1
    return {
        "$schema": _DRAFT,
        "title": "gnnhpc sweep",
        "type": "object",
        "properties": top,
        "required": ["name", "grids"],
        "additionalProperties": False,
        "$defs": {"grid": _grid(), "model": _model(), "data": _data(), "layout": _LAYOUT},
    }


def site_schema() -> Schema:
    """Of a site file: its sites and its default."""
    settings = _properties(Site, {})
    # YAML reads a time limit of plain minutes as a number.
    settings["time"] = {"anyOf": [{"type": "integer", "minimum": 1}, settings["time"]]}
    sites = {"type": "object", "additionalProperties": {"$ref": "#/$defs/site"}, "minProperties": 1}
    return {
        "$schema": _DRAFT,
        "title": "gnnhpc site file",
        "type": "object",
        "properties": {
            "default": {"type": "string", "description": "The site that is taken without --site."},
            "sites": sites,
        },
        "required": ["sites"],
        "additionalProperties": False,
        "$defs": {
            "site": {
                "type": ["object", "null"],
                "description": _first_line(Site.__doc__),
                "properties": settings,
                "additionalProperties": False,
            }
        },
    }


def _grid() -> Schema:
    """What defaults and each grid may say: an experiment's fields, lists of those on an axis."""
    # Either is put into that of the defaults, so no setting of it must be there.
    sampling = {"anyOf": [_optional(Sampling), {"type": "null"}]}
    task = {"anyOf": [_closed(Links, {}), {"type": "null"}]}
    merged = {"optimizer": _optional(OptimizerConfig), "sampling": sampling, "task": task}
    fields = _properties(Experiment, merged)
    fields |= {name: {"$ref": f"#/$defs/{name}"} for name in ("model", "data", "layout")}
    count = fields["microbatches"]
    values = fields | {
        "repeats": {"type": "integer", "minimum": 1, "description": "Runs of each cell."},
        "seq_microbatches": count | {"description": "Micro-batches of layout seq, if others."},
    }
    axes = {SINGULAR.get(field, field): field for field in AXES.values()}
    found: Schema = {}
    for key in sorted(GRID_KEYS):
        field = AXES.get(key, key)
        listed = key in axes or key in SINGULAR or key == "seq_microbatches"
        found[key] = _one_or_more(values[field]) if listed else values[field]
    return {"type": "object", "properties": found, "additionalProperties": False}


def _one_or_more(one: Schema) -> Schema:
    """A value, or a list of such."""
    told = {"description": one["description"]} if "description" in one else {}
    bare = {key: value for key, value in one.items() if key != "description"}
    return told | {"anyOf": [bare, {"type": "array", "items": bare, "minItems": 1}]}


def _model() -> Schema:
    classes = {name: model_class(name) for name in BUILT_IN}
    own = {
        "type": "object",
        "description": "A model of your own, with its settings.",
        "properties": {"name": {"type": "string", "pattern": _OWN_MODEL}},
        "required": ["name"],
    }
    entries = [_closed(cls, {"name": {"const": name}}) for name, cls in classes.items() if cls]
    name = {"anyOf": [{"enum": sorted(BUILT_IN)}, {"type": "string", "pattern": _OWN_MODEL}]}
    return {"anyOf": [name, *entries, own]}


def _data() -> Schema:
    usable = sorted(name for name in DATA if name not in PUBLISHED or not PUBLISHED[name].refused)
    by_class: dict[type[BaseModel], list[str]] = {}
    for name in usable:
        by_class.setdefault(DATA[name], []).append(name)
    entries = [_closed(cls, {"name": {"enum": names}}) for cls, names in by_class.items()]
    # The name alone says nothing of the file.
    return {"anyOf": [{"enum": [name for name in usable if name != "file"]}, *entries]}


def _closed(cls: type[BaseModel], known: Mapping[str, Schema]) -> Schema:
    """The settings of a class; `name` must be there where it has one."""
    properties = _properties(cls, known)
    asked = [
        name
        for name, field in cls.model_fields.items()
        if field.is_required() or (name == "name" and name in known)
    ]
    schema: Schema = {"type": "object", "description": _first_line(cls.__doc__)}
    schema |= {"properties": properties, "additionalProperties": False}
    return schema | ({"required": asked} if asked else {})


def _optional(cls: type[BaseModel]) -> Schema:
    """The settings of a class, any of them."""
    return {name: value for name, value in _closed(cls, {}).items() if name != "required"}


def _properties(cls: type[BaseModel], known: Mapping[str, Schema]) -> Schema:
    """A class's fields as properties, with their docstrings; `known` come in place of its own."""
    docs = field_docstrings(cls)
    found: Schema = {}
    for name, field in cls.model_fields.items():
        if name in known:
            schema = dict(known[name])
        elif name in ("model", "data", "layout"):
            continue
        else:
            adapter = TypeAdapter[Any](field.rebuild_annotation())
            schema = _plain(adapter.json_schema())
            if not field.is_required():
                default = field.get_default(call_default_factory=True)
                schema["default"] = adapter.dump_python(default, mode="json")
        if name in docs:
            schema["description"] = docs[name]
        found[name] = schema
    return found


def _plain(schema: Any) -> Any:
    """Without pydantic's titles; patterns as ECMAScript has them, where \\" is no escape."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) for key, value in schema.items() if key != "title"}
    if "patternProperties" in plain:
        plain.setdefault("additionalProperties", False)
    if isinstance(plain.get("pattern"), str):
        plain["pattern"] = plain["pattern"].replace('\\"', '"')
    return plain


def field_docstrings(cls: type) -> dict[str, str]:
    """The text under each field of a class and of its bases, on one line."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= dict(_documented(ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]))
    return found


def _documented(node: ast.stmt) -> Iterable[tuple[str, str]]:
    assert isinstance(node, ast.ClassDef)
    for field, text in itertools.pairwise(node.body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        value = text.value if isinstance(text, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield field.target.id, " ".join(value.value.split())


def _first_line(doc: str | None) -> str:
    return (doc or "").strip().partition("\n")[0]
