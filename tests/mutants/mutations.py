"""All small changes to a file's syntax tree that its tests should notice. Pure functions."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_SWAPPED: tuple[tuple[type[ast.AST], type[ast.AST]], ...] = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr)),
    *((ast.LShift, ast.RShift), (ast.And, ast.Or)),
)
_OTHER: dict[type[ast.AST], type[ast.AST]] = {
    **dict(_SWAPPED),
    **{other: one for one, other in _SWAPPED},
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitXor: ast.BitOr,
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """A changed file: where, the line as it was, what became of what."""

    line: int
    text: str
    change: str
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    """Every mutant of a file's text, from top to bottom.

    Left alone is what a test cannot or should not see: annotations, docstrings, the words of an
    error, decorators, names of types.
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    for number, node in enumerate(ast.walk(tree)):
        node.place = number  # type: ignore[attr-defined]
    nodes: list[Any] = list(_nodes_to_change(tree))
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        for change, new in _changes(node):
            text = lines[node.lineno - 1].strip()
            yield Mutant(node.lineno, text, change, _with(tree, node, new))


def _nodes_to_change(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without the parts that are left alone."""
    match node:
        case ast.Raise() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.Expr(value=ast.Constant(value=str())):
            return
        case ast.Subscript(value=ast.Name(id="Literal")):
            return
    yield node
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns", "decorator_list", "bases"}:
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _nodes_to_change(child)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in the place of a node, each with its name."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                other = _OTHER[type(op)]
                changed = [*ops[:place], other(), *ops[place + 1 :]]
                yield f"{_named(op)} -> {other.__name__}", _copy(node, ops=changed)
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in _OTHER:
            other = _OTHER[type(op)]
            yield f"{_named(op)} -> {other.__name__}", _copy(node, op=other())
        case ast.UnaryOp(op=op, operand=operand):
            yield f"{_named(op)} -> nothing", operand
        case ast.Constant(value=bool() as value):
            yield f"{value} -> {not value}", ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield f"{value} -> {value + 1}", ast.Constant(value + 1)
        case ast.Constant(value=str() as value):
            yield f"{value!r} -> {value + '?'!r}", ast.Constant(value + "?")
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            called = ast.Name(_CALLED[name], ast.Load())
            yield f"{name} -> {_CALLED[name]}", _copy(node, func=called)
    yield from _other_statements(node)


def _other_statements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Expr(value=ast.Call()):
            yield "call -> pass", ast.Pass()
        case ast.Break():
            yield "break -> continue", ast.Continue()
        case ast.Continue():
            yield "continue -> break", ast.Break()
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=assigned):
            yield f"{_named(op)}= -> =", ast.Assign([ast.Name(name, ast.Store())], assigned)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.UnaryOp):
                negated = ast.UnaryOp(ast.Not(), test)
                yield "condition -> not condition", _copy(node, test=negated)


def _copy(node: ast.AST, **changes: Any) -> ast.AST:
    new = copy.copy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return new


def _named(op: ast.AST) -> str:
    return type(op).__name__


def _with(tree: ast.Module, old: Any, new: ast.AST) -> ast.Module:
    """A copy of the tree with one node replaced, compilable."""

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if getattr(node, "place", None) == old.place:
                return ast.copy_location(copy.deepcopy(new), node)
            return self.generic_visit(node)

    changed: ast.Module = Replace().visit(copy.deepcopy(tree))
    return ast.fix_missing_locations(changed)
