"""What rounding makes of a user's own model, whose layers are known by what they compute alone.

There is no twin of it in another precision. So the same layers compute once more, with each result
of an operation of torch's off by one rounding, forward and backward: a normalisation of numbers
that are nearly alike, as of units that are saturated, makes that a hundred times as large. What is
decided on the way, by a comparison or in whole numbers, must be as it was: each number is rounded
by itself, also two that are the same one in a run, so such a draw may decide what no run does.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from gnnhpc.check.outputs_apart import bounded
from gnnhpc.check.rounding_draws import RoundingDraws
from gnnhpc.check.twin.forward_rounding import ForwardRounding
from gnnhpc.check.twin.own_model import OwnModelTwin
from gnnhpc.check.twin.plain_model import PlainModel
from gnnhpc.check.twin.training import TwinModel
from gnnhpc.models.tensor_bytes import bytes_of

FURTHEST = 0.01
"""Of outputs, relative to their size: a draw that moves them further is not of rounding alone, as
where layers count in floating point, and allows nothing."""

T = TypeVar("T")
Outputs = Sequence[Sequence[object]]
"""Of each piece, those of each layer."""

_STEPS = (
    "floor",
    "ceil",
    "round",
    "trunc",
    "frac",
    "sign",
    "sgn",
    "remainder",
    "fmod",
    "heaviside",
)
"""Beginnings of the names of operations that decide, and give it in floating point."""
_EXACT = frozenset(
    (
        "abs",
        "amax",
        "amin",
        "cat",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "constant_pad_nd",
        "embedding",
        "eye",
        "fill",
        "flip",
        "full",
        "full_like",
        "gather",
        "hardtanh",
        "index",
        "index_select",
        "masked_fill",
        "masked_scatter",
        "masked_select",
        "max",
        "max_pool2d_with_indices",
        "maximum",
        "min",
        "minimum",
        "nan_to_num",
        "neg",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones",
        "ones_like",
        "relu",
        "repeat",
        "roll",
        "scatter",
        "select_backward",
        "slice_backward",
        "sort",
        "stack",
        "take",
        "threshold",
        "threshold_backward",
        "topk",
        "tril",
        "triu",
        "where",
        "zeros",
        "zeros_like",
    )
)
"""Those that select, copy or make numbers, and round none: what they give is one of their inputs,
and may be compared with it."""
_EMPTY = ("empty", "new_empty")
"""Of those that give what was in memory before."""


class DecidedOtherwiseError(Exception):
    """A draw's comparison or whole number is another one."""


class RoundedOperations(TorchDispatchMode):
    """Within it each new tensor that an operation gives is off by one rounding, if there is one.

    Raises DecidedOtherwiseError at the first decision that is not the one in `expected`.
    """

    def __init__(
        self, rounding: ForwardRounding | None, expected: Sequence[bytes] | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rounding, self._expected = rounding, expected
        self.decisions: list[bytes] = []
        """Digests of what was decided, in order."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        operation = func._schema.name.partition("::")[2]
        self._decide(operation, found)
        # What is a view, or was written in place, belongs to another tensor.
        if operation in _EXACT or any(each.alias_info for each in func._schema.returns):
            return found
        return tree_map_only(Tensor, self._of, found)

    def _of(self, x: Tensor) -> Tensor:
        known = x.is_floating_point() and x.layout == torch.strided
        return self._rounding.of(x) if known and self._rounding is not None else x

    def _decide(self, operation: str, found: Any) -> None:
        if operation.startswith(_EMPTY):
            return
        for x in tree_leaves(found):
            if not isinstance(x, Tensor) or x.layout != torch.strided:
                continue
            whole = not (x.is_floating_point() or x.is_complex())
            if not whole and not operation.startswith(_STEPS):
                continue
            digest = hashlib.sha256(bytes_of(x).numpy().tobytes()).digest()
            number = len(self.decisions)
            self.decisions.append(digest)
            if self._expected is not None and self._expected[number : number + 1] != [digest]:
                raise DecidedOtherwiseError


def own_draws(
    began: OwnModelTwin,
    compute: Callable[[OwnModelTwin], T],
    exact: T,
    outputs_of: Callable[[T], Outputs],
) -> RoundingDraws[T]:
    """Of what `compute` made of a user's layers as they were when it `began`, which was `exact`."""

    @functools.cache
    def decisions() -> list[bytes]:
        again, operations = began.rounded(None), RoundedOperations(None)
        with operations:
            if again is not None:
                compute(again)
        return operations.decisions

    def draw(number: int) -> T:
        rounding = ForwardRounding(number)
        rounded = began.rounded(rounding)
        if rounded is None:
            return exact
        try:
            with RoundedOperations(rounding, decisions()):
                found = compute(rounded)
        # Who computes with whole numbers in floating point may ask for row -1.
        except Exception:
            return exact
        return found if _is_near(outputs_of(found), outputs_of(exact)) else exact

    return RoundingDraws(exact, draw)


def draws_of(
    began: TwinModel | None,
    single: PlainModel | None,
    compute: Callable[[OwnModelTwin | PlainModel], T],
    exact: T,
    outputs_of: Callable[[T], Outputs],
) -> RoundingDraws[T] | None:
    """Of a user's own layers, or of the twin in single precision; None where there is neither.

    `began` is the twin as it was before it computed what is `exact`.
    """
    if isinstance(began, OwnModelTwin):
        return own_draws(began, compute, exact, outputs_of)
    return None if single is None else RoundingDraws.of(single, compute)


def _is_near(outputs: Outputs, exact: Outputs) -> bool:
    for pieces in zip(outputs, exact, strict=True):
        for ours, theirs in zip(*pieces, strict=True):
            if isinstance(ours, Tensor) and isinstance(theirs, Tensor):
                found, expected = (bounded(x.double()) for x in (ours, theirs))
                # Not `<=` turned round: what is no number is not near.
                if not float((found - expected).norm()) <= FURTHEST * float(expected.norm()):
                    return False
    return True
