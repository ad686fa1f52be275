"""How far single precision may take a result from the exact one, by the sums that result is of.

A sum of n terms t errs, in whatever order it is made, by about the rounding of one number times
sqrt(n) times the root of the sum of t squared: a random walk of n steps. That root is measured.
The exact layer is run again with each number that passes between its modules, forward and
backward, off by a random rounding, and the root mean square of what comes of it is the root of
the sum of squares, for any result and however its terms come about or cancel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Results = dict[str, Tensor]

UNIT = 2.0**-24  # a rounding to float32, at most, relative to the number
OWN = 32  # roundings of a term before it is added, about
STORED = 4  # roundings of a result after its sum
DEVIATIONS = 3  # of a random walk, standard ones, that pass
DRAWS = 8


def tolerances(
    make: Callable[[], nn.Module],
    run: Callable[[nn.Module], Results],
    terms: Callable[[str], int],
) -> tuple[Results, dict[str, float]]:
    """Results of the float64 module that `make` makes, and how far off each of them may be.

    `terms`: how many are added in single precision for the result of that name.
    """
    exact = run(make())
    squares = {name: torch.zeros_like(value) for name, value in exact.items()}
    for seed in range(DRAWS):
        rounded = run(_rounding(make(), seed))
        for name, value in exact.items():
            squares[name] += (rounded[name] - value).square() / DRAWS
    allowed = {}
    for name, value in exact.items():
        steps = DEVIATIONS * math.sqrt(OWN + terms(name))
        walk = steps * float(squares[name].max().sqrt())
        allowed[name] = walk + STORED * UNIT * float(value.abs().max())
    return exact, allowed


def assert_within(ours: Results, exact: Results, allowed: dict[str, float]) -> None:
    """Each result no further from the exact one than its tolerance; not a number fails."""
    assert ours.keys() == exact.keys()
    for name, value in exact.items():
        error = float((ours[name].double() - value).abs().max())
        assert error <= allowed[name], f"{name}: {error:.1e}, {allowed[name]:.1e} allowed"


def _rounding(layer: nn.Module, seed: int) -> nn.Module:
    """The layer, with what its modules hand on and their gradients rounded at random."""
    generator = torch.Generator().manual_seed(seed)

    def rounded(number: Tensor) -> Tensor:
        draw = torch.rand(number.shape, generator=generator, dtype=number.dtype)
        return number * (1 + UNIT * (2 * draw - 1))

    def hook(module: nn.Module, inputs: Any, out: Any) -> Any:
        if not isinstance(out, Tensor):
            return out
        out = rounded(out)
        if out.requires_grad:
            out.register_hook(rounded)
        return out

    for module in layer.modules():
        if module is not layer:
            module.register_forward_hook(hook)
    return layer
