"""Watches that each step moves a stage's parameters as the optimizer's own rule says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.optimizer_rule import (
    OptimizerState,
    Stepped,
    Values,
    fits,
    stepped,
)
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment, OptimizerConfig

Flags = npt.NDArray[np.bool_]
Named = tuple[str, torch.nn.Parameter]

ELEMENTS = 8_192
"""Of a stage's parameters that are looked at closely in one step, spread evenly over each."""
FEW_ELEMENTS = 256
"""Of the one parameter that is looked at in every other step."""
ZEROS = 8
"""Parameters whose gradients are looked at before the first backward, inside the step."""


class _Zeroed(NamedTuple):
    """A parameter that a step begins with no gradient of, with what can be made ready before it."""

    parameter: torch.nn.Parameter
    gradient: Tensor | None
    elements: Tensor | None
    """Of that gradient, where they lie; None where they do not lie together."""

    @classmethod
    def of(cls, parameter: torch.nn.Parameter) -> _Zeroed:
        gradient = parameter.grad
        together = gradient is not None and gradient.is_contiguous()
        return cls(parameter, gradient, _few(parameter) if together else None)

    def few(self) -> Tensor | None:
        """Elements of its gradient now; None without one."""
        ready = self.elements is not None and self.parameter.grad is self.gradient
        return self.elements if ready else _few(self.parameter)


def _few(parameter: torch.nn.Parameter) -> Tensor | None:
    gradient = parameter.grad
    return None if gradient is None else gradient.detach().reshape(-1)[:256]


@dataclass
class OptimizerWatch:
    """Compares the state after a step with what its gradient makes of the state before."""

    experiment: Experiment
    stage: Stage
    optimizer: torch.optim.Optimizer | None
    findings: Findings
    _trained: list[Named] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    _parameters: list[torch.nn.Parameter] = field(default_factory=list)
    _strides: list[int] = field(default_factory=list)
    _sizes: list[int] = field(default_factory=list)
    _before: OptimizerState | None = None
    _left_over: bool = False
    _zeroed: list[_Zeroed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._trained = [(n, p) for n, p in self.stage.named_parameters() if p.requires_grad]

    def _choose(self, one: int | None) -> None:
        """Elements of all parameters, or of one of them, another in the next step."""
        named, elements = self._trained, ELEMENTS
        if one is not None and named:
            named, elements = [named[one % len(named)]], FEW_ELEMENTS
        if not named:
            return
        self._names = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        share = max(1, elements // len(named))
        self._strides = [max(1, -(-p.numel() // share)) for p in self._parameters]
        pairs = zip(self._parameters, self._strides, strict=True)
        self._sizes = [len(range(0, p.numel(), stride)) for p, stride in pairs]

    def before_step(self, one: int | None = None) -> None:
        """Keep elements of the state, and the gradients of the step before; with a number, of one
        parameter."""
        self._choose(one)
        self._left_over = False
        self._before = self._read() if self._parameters else None
        every = max(1, -(-len(self._parameters) // ZEROS))
        self._zeroed = [_Zeroed.of(p) for p in self._parameters[::every]]

    def before_first_forward(self) -> None:
        """Inside the step: whether gradients were zeroed, of few parameters."""
        some = [each.few() for each in self._zeroed]
        there = [few for few in some if few is not None]
        if there:
            first = there[0].device
            self._left_over = bool(torch.cat([few.to(first) for few in there]).any())

    def after_step(self, step: int) -> None:
        before = self._before
        if before is None:
            return
        self._before = None
        self.findings.looks["optimizer"] += 1
        if self._left_over:
            cause = "gradients of the step before were still there when the first forward began"
            self.findings.add("optimizer", "train", step, cause)
        after = self._read()
        found = self._cause(before.with_gradients(after.gradients), before.gradients, after)
        if found is not None:
            self.findings.add("optimizer", "train", step, found)

    def _cause(self, before: OptimizerState, stale: Values, after: OptimizerState) -> str | None:
        """What the optimizer did instead of its step; none if it did that."""
        wanted = self._stepped(before)
        # A parameter that had no part in the step has no gradient, not a gradient of zero.
        used = np.repeat([p.grad is not None for p in self._parameters], self._sizes)
        wrong = ~np.where(
            used,
            fits(after.values, wanted.after.values, wanted.value_error),
            after.values == before.values,
        )
        if wrong.any():
            return f"{self._where(wrong)} {self._movement(before, stale, after, wanted, wrong)}"
        moments = ~fits(after.mean, wanted.after.mean, wanted.mean_error)
        moments |= ~fits(after.square, wanted.after.square, wanted.square_error)
        moments |= after.steps != wanted.after.steps
        moments &= used
        if moments.any():
            return f"{self._where(moments)}: the optimizer's state is not what the gradient makes"
        return None

    def _movement(
        self,
        before: OptimizerState,
        stale: Values,
        after: OptimizerState,
        wanted: Stepped,
        wrong: Flags,
    ) -> str:
        """How parameters moved, where not as the rule says."""
        if np.array_equal(after.values, before.values):
            return "did not move: the optimizer's step was skipped"
        if np.array_equal(after.values[wrong], before.values[wrong]):
            return "did not move, though others did: the optimizer does not have them"
        twice = self._stepped(wanted.after)
        if fits(after.values, twice.after.values, wanted.value_error + twice.value_error).all():
            return "moved as two steps do: the optimizer's step was applied twice"
        old = before.with_gradients(stale)
        nothing = np.zeros_like(stale)
        fresh = replace(before, mean=nothing, square=nothing, steps=nothing)
        config = self.experiment.optimizer
        without = config.model_copy(update={"weight_decay": 0.0})
        for start, rule, words in (
            (old, config, "moved by the gradient of the step before: it is stale"),
            (fresh, config, "moved as in a first step: the optimizer's moments were lost"),
            (before, without, "moved without weight decay"),
        ):
            other = self._stepped(start, rule)
            if fits(after.values, other.after.values, other.value_error).all():
                return words
        fell, moved = before.values - after.values, wanted.moved
        length = float(moved @ moved)
        if length > 0.0:
            ratio = float(fell @ moved) / length
            error = wanted.value_error * max(1.0, abs(ratio))
            # The errors that the ratio was measured with are in it too.
            error = error + np.abs(moved) * float(np.abs(moved) @ error) / length
            if fits(fell, ratio * moved, error).all():
                return (
                    f"moved {ratio:.3g} times as far as learning rate "
                    f"{self.experiment.optimizer.lr:g} gives"
                )
        return f"did not move as the rule of {self.experiment.optimizer.name} gives"

    def _stepped(self, before: OptimizerState, rule: OptimizerConfig | None = None) -> Stepped:
        dtype = self.experiment.dtype
        on_cpu = self._parameters[0].device.type == "cpu"
        # Torch's fused step takes them in double precision on a CPU alone.
        corrections_in = "float64" if on_cpu else dtype
        return stepped(rule or self.experiment.optimizer, before, dtype, corrections_in)

    def _where(self, wrong: Flags) -> str:
        """Which parameters have wrong elements."""
        parts = np.split(wrong, np.cumsum(self._sizes)[:-1])
        named = [name for name, part in zip(self._names, parts, strict=True) if part.any()]
        if len(named) == len(self._trained):
            return "all parameters of the stage"
        return f"{named[0]} and {len(named) - 1} more" if len(named) > 1 else named[0]

    def _read(self) -> OptimizerState:
        return OptimizerState(
            values=self._elements(lambda p: p.detach()),
            gradients=self._elements(lambda p: p.grad),
            mean=self._elements(lambda p: self._state(p, "exp_avg")),
            square=self._elements(lambda p: self._state(p, "exp_avg_sq")),
            steps=self._elements(self._steps),
        )

    def _state(self, parameter: torch.nn.Parameter, key: str) -> Tensor | None:
        assert self.optimizer is not None
        found: Tensor | None = self.optimizer.state.get(parameter, {}).get(key)
        return found

    def _steps(self, parameter: torch.nn.Parameter) -> Tensor | None:
        return self._state(parameter, "step")

    def _elements(self, tensor_of: Callable[[torch.nn.Parameter], Tensor | None]) -> Values:
        """float64 [elements] of all parameters; zeros for what is not there."""
        parts = []
        for parameter, stride, size in zip(
            self._parameters, self._strides, self._sizes, strict=True
        ):
            tensor = tensor_of(parameter)
            if tensor is None:
                tensor = parameter.new_zeros(size)
            elif tensor.dim() == 0 and parameter.dim() > 0:
                tensor = tensor.to(parameter.device).expand(size)
            else:
                tensor = tensor.reshape(-1)[::stride]
            parts.append(tensor)
        together = torch.cat([part.to(parts[0].device) for part in parts])
        found: Values = together.to("cpu", torch.float64).numpy()
        return found
