"""Reads YAML of specs, site files and --set values; errors name the line, or the key."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from gnnhpc.core.errors import InputError


class _Loader(yaml.SafeLoader):
    """YAML 1.2 scalars (1e-3 is a number, 01:00:00 and `no` are text) and no duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.value == "<<":
                continue
            line = key_node.start_mark.line + 1
            if key_node.value in seen:
                raise yaml.constructor.ConstructorError(
                    None,
                    None,
                    f"key {key_node.value!r} twice, first in line {seen[key_node.value]}",
                    key_node.start_mark,
                )
            seen[key_node.value] = line
        return super().construct_mapping(node, deep)


_SCALARS = (
    ("tag:yaml.org,2002:bool", r"(?:true|True|TRUE|false|False|FALSE)", "tTfF"),
    ("tag:yaml.org,2002:null", r"(?:~|null|Null|NULL|)", "~nN\0"),
    ("tag:yaml.org,2002:int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|nan))",
        "-+.0123456789",
    ),
    ("tag:yaml.org,2002:merge", r"<<", "<"),
)
_ALLOWED = "YAML, with each key once and one indentation for the keys of a level"
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(
        _tag, re.compile(rf"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
    )


def parse_yaml(text: str, where: object) -> Any:
    """The data in `text`; raises InputError with the line for anything YAML cannot read."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = (error.problem or error.context or "something else").removeprefix("found ")
        found = f"unreadable YAML ({problem})" if problem.startswith("expected") else problem
        raise InputError(place, None, found, _ALLOWED) from None
    except yaml.YAMLError as error:
        raise InputError(where, None, str(error), "YAML as text") from None
    except (RecursionError, ValueError) as error:
        raise InputError(where, None, f"unreadable YAML ({error})", "plain YAML") from None


def read_text(path: Path, what: str) -> str:
    """The text of a file the user named; raises InputError saying why it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(path, None, "no such file", what) from None
    except OSError as error:
        raise InputError(path, None, f"{error.strerror}", what) from None
    except UnicodeDecodeError as error:
        raise InputError(path, None, f"bytes that are not UTF-8 ({error.reason})", what) from None


def read_mapping(text: str, where: object, keys: str) -> dict[str, Any]:
    """`text` as a mapping with text keys; `keys` says which, for the error line."""
    data = parse_yaml(text, where)
    if not isinstance(data, dict):
        found = "nothing" if data is None else f"a {type(data).__name__}"
        raise InputError(where, None, found, f"a mapping with the keys {keys}")
    for key in data:
        if not isinstance(key, str):
            raise InputError(where, repr(key), f"a key of type {type(key).__name__}", keys)
    return data
