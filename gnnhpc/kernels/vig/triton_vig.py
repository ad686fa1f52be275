"""ViG's layers on a GPU in float32: `torch_vig` with its passes over rows as Triton programs.

Every sum over rows is one of parts whose number depends on the rows alone, added in order: the
result has the same bits each time.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from gnnhpc.kernels.triton import vig_programs as programs
from gnnhpc.kernels.triton.launch import launch, power_of_two
from gnnhpc.kernels.vig import torch_vig
from gnnhpc.kernels.vig.torch_vig import Grid, Passes, Sums, Weights
from gnnhpc.kernels.vig.vig_fold import Moments

FFN, GRAPHER = 3, 7
"""Inputs of a hidden unit."""
# Of what was tried on an H200, with an FFN's 512 hidden units, a million rows and programs of half
# as many instructions again, the fastest; with a Grapher's inputs only its forward was timed.
ROWS = 256
"""That a program over rows takes, of 4 warps."""
UNITS = 256
"""Hidden units, at most, that a program of weights' gradients takes, of 4 warps."""
AT_ONCE = 4
"""Turns of an inner loop that are written out one after the other."""
PART_ROWS = 2048
"""The most rows whose weights' gradients one program adds."""
PARTS = 512
"""Of so many that each has fewer rows, where there are not more."""


class TritonPasses(Passes):
    """The passes by programs; inputs are float32 and contiguous."""

    def moments(self, x: Tensor) -> Moments:
        # Sums in float64 lose less by the mean than x did in float32.
        means = _products(x, x) / len(x)
        mean, squares = means[:3], means[3:].view(3, 3)
        return Moments(mean, torch.addr(squares, mean, mean, alpha=-1))

    def gradient_sums(self, g: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sums = _products(g, y)
        return sums[:3], sums[3::4]

    def units(self, first: Tensor, w2: Tensor, dtype: torch.dtype) -> Tensor:
        """`[inputs + 4, hidden]`."""
        return torch.cat([first.t(), w2]).to(dtype)

    def network(self, x: Tensor, grid: Grid, units: Tensor, weights: Weights) -> Tensor:
        y = torch.empty_like(x)
        args = (x, units, weights.b2, y, len(x), *grid)
        launch(programs.vig_forward, _grid(x), *args, like=x, **_over_rows(units))
        return y

    def gradients(
        self,
        x: Tensor,
        y: Tensor,
        g: Tensor,
        along: Tensor,
        grid: Grid,
        units: Tensor,
        weights: Weights,
    ) -> Sums:
        constants, (inputs, hidden) = _over_rows(units), units.shape
        conv = constants["INPUTS"] == GRAPHER
        d_y, d_x = torch.empty_like(x), torch.empty_like(x)
        # An FFN's programs read and write neither of these.
        d_neighbours = torch.empty_like(x) if conv else d_x
        around = x.new_empty(len(x), 4) if conv else d_x
        args = (x, units, y, g, along, d_y, around, d_x, d_neighbours, len(x), *grid)
        launch(programs.vig_backward_rows, _grid(x), *args, like=x, **constants)

        part_rows = min(PART_ROWS, max(AT_ONCE, power_of_two(-(-len(x) // PARTS))))
        parts, at_once = -(-len(x) // part_rows), min(UNITS, power_of_two(hidden))
        d_units = x.new_empty(parts, inputs, hidden)
        launch(
            programs.vig_backward_weights,
            (parts, -(-hidden // at_once)),
            *(x, units, d_y, around, d_units, len(x), part_rows),
            like=x,
            **{name: constants[name] for name in ("INPUTS", "HIDDEN", "AT_ONCE")},
            UNITS=at_once,
        )
        sums = d_units.sum(0, dtype=torch.float64)
        d_b2 = d_y.sum(0, dtype=torch.float64)
        return Sums(sums[:-3].t(), sums[-3:], d_b2, d_x, d_neighbours if conv else None)

    def input_gradient(self, of: Sums, g: Tensor, x: Tensor, slope: Tensor, grid: Grid) -> Tensor:
        conv, out = of.d_neighbours is not None, torch.empty_like(x)
        sums = of.d_neighbours if conv else of.d_x
        args = (of.d_x, sums, g, x, slope, out, len(x), *grid)
        constants = {"INPUTS": GRAPHER if conv else FFN, "ROWS": ROWS}
        launch(programs.vig_input_gradient, _grid(x), *args, like=x, **constants)
        return out


forward = functools.partial(torch_vig.forward, passes=TritonPasses())
backward = functools.partial(torch_vig.backward, passes=TritonPasses())


def _products(a: Tensor, b: Tensor) -> Tensor:
    """Sums over rows of a, and of the outer products of a and b `[3, 3]`: `[12]` float64."""
    at_once = 4 * ROWS
    partial = a.new_empty(-(-len(a) // at_once), 12, dtype=torch.float64)
    launch(programs.vig_products, (len(partial),), a, b, partial, len(a), like=a, ROWS=at_once)
    return partial.sum(0)


def _over_rows(units: Tensor) -> dict[str, int]:
    inputs, hidden = units.shape
    return {"INPUTS": inputs - 4, "HIDDEN": hidden, "ROWS": ROWS, "AT_ONCE": AT_ONCE}


def _grid(x: Tensor) -> tuple[int, ...]:
    return (-(-len(x) // ROWS),)
