"""All small changes to a file's syntax tree that its tests should notice. Pure functions."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
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
    found: list[Mutant] = []
    for node in _nodes_to_change(tree):
        for change, new in _changes(node):
            line = node.lineno  # type: ignore[attr-defined]
            mutated = _with(tree, node, new)
            found.append(Mutant(line, lines[line - 1].strip(), change, mutated))
    yield from sorted(found, key=lambda mutant: mutant.line)


def _nodes_to_change(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a tree, without the parts that are left alone."""
    yield node
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.Subscript) and _name(node.value) == "Literal":
        return
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "bases"}:
            continue
        children = value if isinstance(value, list) else [value]
        for child in children:
            if isinstance(child, ast.AST) and not _is_docstring(child):
                yield from _nodes_to_change(child)


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What may stand in the place of a node, each with its name."""
    yield from _other_operators(node)
    match node:
        case ast.Constant(value=value):
            yield from _other_constants(value)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.UnaryOp):
                new = copy.deepcopy(node)
                new.test = ast.UnaryOp(ast.Not(), test)
                yield "condition -> not condition", new
        case ast.Expr(value=ast.Call()):
            yield "call -> pass", ast.Pass()
        case ast.Call(func=ast.Name(id=name)) if name in _CALLED:
            new = copy.deepcopy(node)
            new.func = ast.Name(_CALLED[name], ast.Load())
            yield f"{name} -> {_CALLED[name]}", new
        case ast.AugAssign(target=ast.Name(id=name), op=op, value=value):
            yield f"{_named(op)}= -> =", ast.Assign([ast.Name(name, ast.Store())], value)
        case ast.Break():
            yield "break -> continue", ast.Continue()
        case ast.Continue():
            yield "continue -> break", ast.Break()


def _other_operators(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                new = copy.deepcopy(node)
                new.ops[place] = _COMPARED[type(op)]()
                yield f"{_named(op)} -> {_named(new.ops[place])}", new
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in _CALCULATED:
            new = copy.deepcopy(node)
            new.op = _CALCULATED[type(op)]()
            yield f"{_named(op)} -> {_named(new.op)}", new
        case ast.BoolOp(op=op):
            new = copy.deepcopy(node)
            new.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"{_named(op)} -> {_named(new.op)}", new
        case ast.UnaryOp(op=op, operand=operand):
            yield f"{_named(op)} -> nothing", operand


def _other_constants(value: object) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(value, bool):
        yield f"{value} -> {not value}", ast.Constant(not value)
    elif isinstance(value, int | float):
        yield f"{value} -> {value + 1}", ast.Constant(value + 1)
    elif isinstance(value, str):
        yield f"{value!r} -> {value + '?'!r}", ast.Constant(value + "?")


def _named(op: ast.AST) -> str:
    return type(op).__name__


def _name(node: ast.AST) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _with(tree: ast.Module, old: ast.AST, new: ast.AST) -> ast.Module:
    """A copy of the tree with one node replaced, compilable."""

    class Replace(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if getattr(node, "place", None) == old.place:  # type: ignore[attr-defined]
                return ast.copy_location(copy.deepcopy(new), node)
            return self.generic_visit(node)

    changed: ast.Module = Replace().visit(copy.deepcopy(tree))
    return ast.fix_missing_locations(changed)
