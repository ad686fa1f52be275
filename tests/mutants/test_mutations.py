"""What is changed and what is left alone."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.mutants.mutations import mutants
from tests.mutants.targets import TARGETS
from tests.mutants.trial import ROOT

SOURCE = '''\
"""Words."""
from typing import Literal
Kind = Literal["a", "b"]

def f(x: int = 3) -> "int":
    """More words, 7."""
    if x < 4 and not x:
        raise ValueError(f"{x} + 1")
    total = 0
    total += max(x, 2) * 5
    print(total)
    return -total
'''


def test_each_change_is_one_and_no_word_of_an_error_is_changed() -> None:
    found = [(mutant.line, mutant.change) for mutant in mutants(SOURCE)]
    assert sorted(found) == sorted(
        [
            (5, "3 -> 4"),
            (7, "condition -> not condition"),
            (7, "And -> Or"),
            (7, "Lt -> LtE"),
            (7, "4 -> 5"),
            (7, "Not -> nothing"),
            (9, "0 -> 1"),
            (10, "Add -> Sub"),
            (10, "Add= -> ="),
            (10, "max -> min"),
            (10, "2 -> 3"),
            (10, "Mult -> Div"),
            (10, "5 -> 6"),
            (11, "call -> pass"),
            (12, "USub -> nothing"),
        ]
    )
    as_it_was = ast.unparse(ast.parse(SOURCE)).splitlines()
    for mutant in mutants(SOURCE):
        compile(mutant.tree, "mutant", "exec")
        lines = ast.unparse(mutant.tree).splitlines()
        assert sum(a != b for a, b in zip(as_it_was, lines, strict=True)) == 1
        assert mutant.text in SOURCE


def test_what_is_named_is_there() -> None:
    for files, tests in TARGETS.values():
        assert all(Path(ROOT, path).is_file() for path in (*files, *tests))
