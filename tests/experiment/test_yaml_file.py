"""The YAML that specs and site files are written in."""

from __future__ import annotations

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.yaml_file import parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.0e-3", 0.001),
        ("5", 5),
        ("-5", -5),
        ("01:00:00", "01:00:00"),
        ("no", "no"),
        ("true", True),
        ("null", None),
        ("", None),
        ("2024-01-01", "2024-01-01"),
        ("007", "007"),
        ("[seq, pp2]", ["seq", "pp2"]),
        ("{a: 1}", {"a": 1}),
    ],
)
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    assert parse_yaml(text, "spec") == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\na: 2\n", "spec:2: found key 'a' twice, first in line 1"),
        ("a: [1, 2\nb: 3\n", "spec:2: found"),
        ("a: 1\n  b: 2\n", "spec:2: found"),
        ("a:\n\t- 1\n", "spec:2: found character '\\t' that cannot start any token; allowed: YAML"),
        ("a: *nowhere\n", "spec:1: found"),
        ("a: !!python/object:os.system x\n", "spec:1: found"),
    ],
)
def test_unreadable_yaml_is_told_with_its_line(text: str, line: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "spec")
    assert str(caught.value).startswith(line)
