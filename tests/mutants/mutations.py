"""All small changes to a file's syntax tree that its tests should notice. Pure functions."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass

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
                new.ops[place] = _OTHER[type(op)]()  # type: ignore[call-overload]
                yield f"{_named(op)} -> {_named(new.ops[place])}", new
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in _OTHER:
            other = copy.deepcopy(node)
            other.op = _OTHER[type(op)]()  # type: ignore[assignment]
            yield f"{_named(op)} -> {_named(other.op)}", other
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
