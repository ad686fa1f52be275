"""Whether the gradient of a step of full size is the slope of its loss.

The self-checks hold gradients against a twin's, of few rows: what goes wrong in larger tensors
alone shows in none. Here the run's own stages take one step more, at what they hold after the last,
and its loss twice again with the parameters a little further along the gradient and back: a central
difference, of which the gradient says how large it is.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.check.process_state import generators_put_back
from gnnhpc.engines.base import parameters_of
from gnnhpc.models.own_model import OwnModel
from gnnhpc.ranks.mesh import Mesh
from gnnhpc.records.schema import Check
from gnnhpc.spec.experiment import Experiment
from gnnhpc.train.setup import TrainingParts

NAME = "slope"
TOLERANCE = 0.01
"""Of the difference that the gradient says."""
CHANGES = (2e-3, 2e-4, 2e-5)
"""By how much of it the loss is to change. A larger change is less straight, and a smaller one more
hidden by rounding: the gradient has to be right for one of them."""
STRAIGHT, APART = 0.25, 5.0
"""Of how far two differences are from what the gradient says, by how much they may differ from each
other where the loss is straight: of two that are so many times as large as each other. Near kinks
how far they are off shrinks as they do."""
MOST_CHANGE = 0.1
"""Of the loss: what changes it by more tells nothing of its slope."""
ROUNDINGS = 2.0
"""How many units in the last place of its largest score a loss may be off."""
HIDDEN = 200.0
"""How many times what rounding hides a difference has to be."""
PASSES = 3
MOST_S, MOST_SHARE = 30.0, 0.1
"""What it may take: the larger of these seconds and this share of all training steps."""


@dataclass(frozen=True)
class Slope:
    """A central difference of the loss, what the gradient says of it, and what rounding hides."""

    found: float
    expected: float
    hidden: float

    @property
    def ratio(self) -> float:
        """No number where nothing is expected, as of moves that are all lost in rounding."""
        return self.found / self.expected if self.expected else math.nan

    @property
    def is_right(self) -> bool:
        away = abs(self.found - self.expected)
        return self.expected != 0 and away <= TOLERANCE * abs(self.expected) + self.hidden


def changes(loss: float, hidden: float) -> list[float]:
    """By how much the loss is to change, one after the other; none where no change would tell."""
    wanted = [max(share * abs(loss), HIDDEN * hidden) for share in CHANGES]
    return [change for change in dict.fromkeys(wanted) if change <= MOST_CHANGE * abs(loss)]


def contradiction(slopes: Sequence[Slope]) -> Slope | None:
    """The smallest difference that contradicts the gradient; None where one does not, or where the
    loss is not straight over any two.
    """
    if any(each.is_right for each in slopes):
        return None
    for a, b in itertools.combinations(sorted(slopes, key=lambda each: abs(each.expected)), 2):
        away = min(abs(a.ratio - 1), abs(b.ratio - 1))
        apart = abs(b.expected) >= APART * abs(a.expected)
        if apart and abs(a.ratio - b.ratio) <= STRAIGHT * away:
            return a
    return None


def slope_check(
    experiment: Experiment, parts: TrainingParts, mesh: Mesh, step_s: Sequence[float]
) -> Check:
    """The same check on every rank; a collective, which leaves parameters and buffers as they were.

    `step_s` are how long this rank's training steps took.
    """
    mean_s = sum(step_s) / len(step_s) if step_s else 0.0
    taken = mesh.gather(torch.tensor([mean_s, sum(step_s)], dtype=torch.float64)).max(0).values
    mean_s, total_s = taken.tolist()
    if PASSES * mean_s > max(MOST_S, MOST_SHARE * total_s):
        detail = f"{PASSES} steps of {mean_s:.2g} s would be too much of a run of {total_s:.2g} s"
        return Check(NAME, "unknown", detail, {})
    began = time.perf_counter()
    parts.stage.train()
    step = experiment.train_steps
    with parts.batches.open("train", step, step + 1) as batches:
        slopes = _slopes(_Passes(experiment, parts, mesh, next(iter(batches))))
    own = isinstance(experiment.model, OwnModel)
    return verdict(slopes, time.perf_counter() - began, own=own)


def verdict(slopes: Sequence[Slope], seconds: float, *, own: bool = False) -> Check:
    """Of differences of one loss; none where it is too small for any.

    A model of a user's `own` may have gradients that are meant to be no slopes, as of a
    straight-through estimator, or draw numbers of its own: that is for its user to say.
    """
    if not slopes:
        return Check(NAME, "unknown", "rounding hides the slope of so small a loss", {})
    wrong = contradiction(slopes)
    best = wrong or min(slopes, key=lambda each: abs(each.ratio - 1))
    values = {"ratio": best.ratio, "tried": len(slopes), "seconds": round(seconds, 3)}
    found = f"by {best.ratio:.4f} of what the gradient says"
    if wrong is None and not best.is_right:
        detail = f"the loss changes {found}, and is not straight enough to tell why"
        return Check(NAME, "unknown", detail, values)
    detail = f"the loss of one step more changes along its gradient {found}"
    if wrong is not None and own:
        return Check(NAME, "suspect", f"{detail}, unless its model means it so", values)
    return Check(NAME, "invalid" if wrong else "ok", detail, values)


def _slopes(passes: _Passes) -> list[Slope]:
    """As many as are needed for one that is right."""
    loss, scores = passes.take()
    direction = _Direction(passes.parameters)
    steepness = passes.sum_of_stages(direction.steepness)
    if not (math.isfinite(loss) and math.isfinite(steepness) and steepness > 0):
        return []
    hidden = ROUNDINGS * torch.finfo(passes.dtype).eps * (abs(loss) + scores)
    found: list[Slope] = []
    for change in changes(loss, hidden):
        length = change / (2 * steepness)
        try:
            ahead = direction.move(length)
            higher, _ = passes.take()
            back = direction.move(-length)
            lower, _ = passes.take()
        finally:
            direction.put_back()
        expected = passes.sum_of_stages(ahead - back)
        found.append(Slope(higher - lower, expected, hidden))
        if found[-1].is_right:
            break
    return found


class _Passes:
    """Of one batch, forward and backward by all ranks."""

    def __init__(
        self, experiment: Experiment, parts: TrainingParts, mesh: Mesh, batch: Batch
    ) -> None:
        self.parts, self.mesh, self.batch = parts, mesh, batch
        self.dtype = getattr(torch, experiment.dtype)
        self.parameters = parameters_of(parts.stage)
        self._buffers = [(buffer, buffer.clone()) for buffer in parts.stage.buffers()]

    def take(self) -> tuple[float, float]:
        """The loss, the mean over replicas, and the largest score; gradients are new ones, and
        buffers stay as they were: each pass begins with the same."""
        parts, timer = self.parts, self.parts.timer
        if parts.optimizer is not None:
            parts.optimizer.zero_grad(set_to_none=False)
        timer.prepare()
        timer.start()
        with generators_put_back():
            trained = parts.engine.train_step(self.batch)
        parts.stage.end_minibatch()
        timer.stop()
        for buffer, before in self._buffers:
            buffer.copy_(before)
        values = torch.zeros(2, dtype=torch.float64)
        if self.mesh.has_loss:
            values[0] = sum(float(loss) for loss in trained.losses)
            # A chunk may have no node of its own.
            scores = (float(output.abs().max()) for output in trained.outputs if len(output))
            values[1] = max(scores, default=0.0)
        everyone = self.mesh.gather(values)
        return float(everyone[:, 0].sum()) / self.mesh.layout.replicas, float(everyone[:, 1].max())

    def sum_of_stages(self, value: float) -> float:
        """Of one replica; every rank gets it."""
        everyone = self.mesh.gather(torch.tensor([value], dtype=torch.float64))
        layout = self.mesh.layout
        return float(sum(everyone[layout.rank_of(0, s), 0] for s in range(layout.stages)))


class _Direction:
    """Of each parameter its gradient's, as long as the parameter: no layer's is lost in others'."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        pairs = [(p, p.grad) for p in parameters if p.grad is not None and bool(p.grad.any())]
        self._parameters = [p for p, _ in pairs]
        self._before = [p.detach().clone() for p, _ in pairs]
        self._gradients = [g.to(torch.float64, copy=True) for _, g in pairs]
        lengths = [(_norm(p.detach()), _norm(g)) for p, g in pairs]
        self._scales = [of_p / of_g for of_p, of_g in lengths]
        self.steepness = sum(of_p * of_g for of_p, of_g in lengths)
        """By how much the loss grows along it."""

    @torch.no_grad()
    def move(self, length: float) -> float:
        """Set the parameters so far from where they were, in their precision; by how much the loss
        is larger there, as the gradients say."""
        larger = 0.0
        for p, before, gradient, scale in zip(
            self._parameters, self._before, self._gradients, self._scales, strict=True
        ):
            p.copy_(before.double() + length * scale * gradient)
            larger += float((gradient * (p.double() - before.double())).sum())
        return larger

    @torch.no_grad()
    def put_back(self) -> None:
        for p, before in zip(self._parameters, self._before, strict=True):
            p.copy_(before)


def _norm(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))
