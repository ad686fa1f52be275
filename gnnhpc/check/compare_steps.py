"""Holds what ranks computed in a few steps against the twin, in the order in which data flow.

Every step of the twin begins at the run's own parameters and buffers, so that one step's rounding
is not the next one's difference; the optimizer's rule says whether those parameters are right.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from torch import Tensor

from gnnhpc.check.capture import INPUT, Array, RankSeen, array_of
from gnnhpc.check.compare_activations import (
    Place,
    compare_activations,
    compare_targets,
    difference_at,
    repeated_forwards,
)
from gnnhpc.check.compare_gradients import (
    TOLERANCE,
    Difference,
    Losses,
    Verdict,
    differences,
    largest,
    likely_causes,
)
from gnnhpc.check.compare_state import compare_buffers, compare_moves
from gnnhpc.check.kinks import explain_by_kinks
from gnnhpc.check.lost_in_rounding import lost_in_rounding
from gnnhpc.check.own_draws import draws_of
from gnnhpc.check.rounding_draws import ROUNDING_FACTOR, RoundingDraws, finite
from gnnhpc.check.seen_ranks import SeenRanks, TensorsOf
from gnnhpc.check.twin.optimizer_rule import OptimizerRule
from gnnhpc.check.twin.own_model import OwnModelTwin
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.plain_model import PlainModel
from gnnhpc.check.twin.training import Activations, TwinModel, TwinStep, evaluate, train_step
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.records.schema import Phase

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
LOSS_FACTOR = 10.0
"""A loss is a sum over rows of differences of logarithms: its rounding is more than a layer's."""

T = TypeVar("T")


@dataclass
class StepComparison:
    """One comparison of all ranks with the twin; `pieces(phase, step)` are the twin's inputs."""

    experiment: Experiment
    layers: list[str]
    stages: Mapping[str, int]
    """Which stage holds a layer."""
    seen: SeenRanks
    twin: TwinModel
    pieces: Callable[[Phase, int], list[Piece]]
    single: PlainModel | None = None
    """The twin in single precision, for a run in it."""
    first: int = 0
    """The first step; after step 0 the twin goes on from what the run holds."""
    worst: dict[str, float] = field(default_factory=dict)
    """The largest relative difference of each kind of thing compared."""
    causes: list[str] = field(default_factory=list)
    kinks: int = 0
    rounding: float = 0.0
    """What single precision alone makes of a layer's gradient in the twin."""
    lost: list[str] = field(default_factory=list)
    """Layers whose gradient differed in a step by no more than rounding explains."""
    hidden: dict[str, float] = field(default_factory=dict)
    """Of a user's own model, what differed no more than draws explain, in words, and how far these
    explain it."""
    _dead: dict[str, bool] = field(default_factory=dict)
    """Of each layer, whether it has had no gradient other than zero, here and in the twin."""
    _gradients: list[Difference] = field(default_factory=list)
    _parameters: list[Difference] = field(default_factory=list)
    _losses: tuple[float, float] = (0.0, 0.0)

    def run(self, audited: Callable[[Collection[str]], Mapping[str, str]]) -> Verdict:
        """The verdict; `audited` gives what the audit of the same steps finds invalid, told which
        layers have no gradient in the twin either."""
        rule = OptimizerRule(self.experiment.optimizer, self.experiment.dtype)
        before = self._held(rule) if self.first else self._initial()
        outputs = self.experiment.outputs
        for step in range(self.first, self.first + self.seen.steps):
            pieces = self.pieces("train", step)
            began = self.twin.copied()
            twin = train_step(self.twin, pieces, before, step, outputs)
            rounded = self._draws(step, pieces, before, twin, began)
            self._inputs("train", step, pieces)
            self._activations(
                "train", step, pieces, twin.activations, rounded, lambda each: each.activations
            )
            self._loss(step, twin, rounded)
            gradients = self._gradients_of(step, pieces, before, twin, rounded, began)
            before = self._update(step, before, gradients, rule)
            own = rounded if isinstance(self.twin, OwnModelTwin) else None
            self._buffers("buffers", functools.partial(_buffers_after, step - self.first), own)
            if self.causes:
                break
        if not self.causes and self.experiment.test_steps:
            self._evaluation(before)
        dead = [layer for layer, is_dead in self._dead.items() if is_dead]
        return Verdict(
            self.tolerance,
            *self._losses,
            self._gradients,
            self._parameters,
            self.kinks,
            [f"{name}: {detail}" for name, detail in audited(dead).items()] + self.causes,
            self.worst,
            self.rounding,
            self.lost,
            dead,
            self.hidden,
        )

    def diverges(self) -> bool:
        """Whether the twin, in the run's precision, has no finite numbers left after the steps."""
        model = self.single or self.twin
        rule = OptimizerRule(self.experiment.optimizer, self.experiment.dtype)
        before = self._held(rule)
        outputs = self.experiment.outputs
        for step in range(self.first, self.experiment.train_steps):
            twin = train_step(model, self.pieces("train", step), before, step, outputs)
            if not math.isfinite(twin.loss):
                return not self.causes
            with np.errstate(over="ignore", invalid="ignore"):
                before = rule.after(before, twin.gradients)
        if not self.experiment.test_steps or self.causes:
            return False
        scores = [each[-1] for each in evaluate(model, self.pieces("test", 0), before, 0)]
        return not all(isinstance(s, Tensor) and bool(s.isfinite().all()) for s in scores)

    def _draws(
        self,
        step: int,
        pieces: Sequence[Piece],
        before: Mapping[str, Array],
        twin: TwinStep,
        began: TwinModel | None,
    ) -> RoundingDraws[TwinStep] | None:
        """The same step of the twin in the run's precision: how far its gradients are off.

        `began` is the twin before the step.
        """

        def taken(model: TwinModel) -> TwinStep:
            return train_step(model, pieces, before, step, self.experiment.outputs)

        draws = draws_of(began, self.single, taken, twin, lambda each: each.activations)
        if draws is not None and draws.first is not twin:
            self.rounding = max([self.rounding, *self._rounding_of(draws.first, twin).values()])
        return draws

    def _rounding_of(self, rounded: TwinStep, twin: TwinStep) -> dict[str, float]:
        """Of each layer, how far its gradient in single precision is off."""
        explained = explain_by_kinks(rounded.gradients, twin, EPS[self.experiment.dtype])
        compared = differences(rounded.gradients, explained.gradients, self.layers)
        return {d.layer: d.relative for d in compared}

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.experiment.dtype]

    def _note(self, what: str, relative: float, cause: str, allowed: float | None = None) -> None:
        """Keep the largest difference; add the cause where it is too large, or no number."""
        relative = relative if math.isfinite(relative) else math.inf
        self.worst[what] = max(self.worst.get(what, 0.0), relative)
        if relative > (self.tolerance if allowed is None else allowed):
            self.causes.append(f"{what}: {cause} ({relative:.2e})")

    def _same_on_replicas(self, what: str, tensors: TensorsOf) -> dict[str, Array]:
        """Replica 0's tensors; the other replicas must have the same bits."""
        other = self.seen.unequal(tensors)
        if other is not None:
            replica, name = other
            self.causes.append(
                f"replicas: {what} of {name} on replica {replica} are not replica 0's"
            )
        return self.seen.of_replica(0, tensors)

    def _initial(self) -> dict[str, Array]:
        expected = {n: v.double().numpy() for n, v in self.twin.initial().items()}
        found = self._same_on_replicas("initial values", lambda each: each.initial)
        for each in differences(found, expected, self.layers):
            self._note("initial values", each.relative, f"{each.layer} has not its seed's")
        return found

    def _held(self, rule: OptimizerRule) -> dict[str, Array]:
        """What the run holds before the step; the twin takes it over, the optimizer's state too."""
        found = self._same_on_replicas("parameters", lambda each: each.initial)
        for replica in range(self.seen.replicas):
            buffers = self.seen.of_replica(replica, lambda each: each.buffers)
            kinds = self.seen.kinds_of(replica)
            for model in (self.twin, self.single):
                if model is not None:
                    model.restore(replica, buffers, kinds)
        rule.states = {n: s for each in self.seen.ranks for n, s in each.optimizer.items()}
        return found

    def _inputs(self, phase: Phase, step: int, pieces: Sequence[Piece]) -> None:
        if self.causes:
            return
        inputs = [piece.inputs for piece in pieces]
        found = compare_activations(self.seen.activations, phase, step, INPUT, pieces, inputs)[0]
        self._note("inputs", found.relative, f"{phase} step {step}, {found.where}")
        wrong = compare_targets(self.seen.targets, phase, step, pieces)
        if wrong:
            self.causes.append(f"labels: {phase} step {step}, {wrong}")

    def _activations(
        self,
        phase: Phase,
        step: int,
        pieces: Sequence[Piece],
        twin: Sequence[Activations],
        rounded: RoundingDraws[T] | None,
        activations_of: Callable[[T], Sequence[Activations]],
    ) -> None:
        if self.causes:
            return
        seen = self.seen.activations
        places = self.experiment.layout.replicas * self.experiment.microbatches
        for number, layer in enumerate(self.layers):
            repeated = repeated_forwards(seen, phase, step, layer, places)
            if repeated:
                self.causes.append(f"outputs: {layer} in {phase} step {step} {repeated}")
                return
            outputs = [each[number] for each in twin]
            for found in compare_activations(seen, phase, step, layer, pieces, outputs):
                allowed = self.tolerance
                if found.relative > allowed and rounded is not None and found.place is not None:
                    away = functools.partial(_away, number, outputs, found.place, activations_of)
                    allowed = rounded.allowed(found.relative, allowed, away)
                    self._hide(f"the outputs of {layer}", found.relative, allowed)
                cause = f"{layer} in {phase} step {step}, {found.where}"
                self._note("outputs", found.relative, cause, allowed)
                if self.causes:
                    return

    def _loss(self, step: int, twin: TwinStep, rounded: RoundingDraws[TwinStep] | None) -> None:
        ours = self._loss_of(step)
        if step == self.first:
            self._losses = ours, twin.loss
        if self.causes:
            return
        scale = max(abs(twin.loss), 1e-30)
        relative = abs(ours - twin.loss) / scale
        relative = relative if math.isfinite(relative) else math.inf
        self.worst["loss"] = max(self.worst.get("loss", 0.0), relative)
        allowed = LOSS_FACTOR * self.tolerance
        # A loss near zero is what is left of scores that are much larger.
        least = EPS[self.experiment.dtype] * twin.largest_score
        if rounded is None:
            allowed += ROUNDING_FACTOR * least / scale
        else:

            def rounding(drawn: TwinStep) -> float:
                return max(abs(drawn.loss - twin.loss), least) / scale

            allowed = rounded.allowed(relative, allowed, rounding)
        if relative > allowed:
            self.causes += self._likely(step, ours, twin, differences({}, {}, self.layers))

    def _gradients_of(
        self,
        step: int,
        pieces: Sequence[Piece],
        before: Mapping[str, Array],
        twin: TwinStep,
        rounded: RoundingDraws[TwinStep] | None,
        began: TwinModel | None,
    ) -> dict[str, Array]:
        found = self._same_on_replicas(
            "gradients", lambda each: each.steps[step - self.first].gradients
        )
        expected = twin.gradients
        compared = differences(found, expected, self.layers)
        for each in compared:
            zero = each.norm == 0 and each.twin_norm == 0
            self._dead[each.layer] = self._dead.get(each.layer, True) and zero
        allowed = max(self.tolerance, ROUNDING_FACTOR * self.rounding)
        if largest(compared) > allowed and not self.causes:
            explained = explain_by_kinks(found, twin, EPS[self.experiment.dtype])
            self.kinks += explained.kinks
            compared = differences(found, explained.gradients, self.layers)
        if largest(compared) > allowed and not self.causes and began is not None:
            outputs, eps = self.experiment.outputs, EPS[self.experiment.dtype]
            lost = lost_in_rounding(began, pieces, before, step, outputs, twin, self.layers, eps)
            compared = self._above_rounding(compared, allowed, lost)
        if largest(compared) > allowed and not self.causes and rounded is not None:
            drawn = self._drawn(rounded, twin)
            for each in compared:
                share = allowed + ROUNDING_FACTOR * drawn[each.layer]
                self._hide(f"the gradient of {each.layer}", each.relative, share)
            compared = self._above_rounding(compared, allowed, drawn)
        self._gradients = _worse(self._gradients, compared)
        worst = largest(compared)
        self.worst["gradients"] = max(self.worst.get("gradients", 0.0), worst)
        if worst > allowed and not self.causes:
            self.causes += self._likely(step, self._loss_of(step), twin, compared)
        return found

    def _above_rounding(
        self, compared: list[Difference], allowed: float, rounding: Mapping[str, float]
    ) -> list[Difference]:
        """Those layers of which more can be told than that `rounding` explains the difference."""
        explained = [
            d.layer
            for d in compared
            if allowed < d.relative <= allowed + ROUNDING_FACTOR * rounding[d.layer]
        ]
        self.lost += [layer for layer in explained if layer not in self.lost]
        return [d for d in compared if d.layer not in explained]

    def _hide(self, what: str, relative: float, share: float) -> None:
        """Keep that rounding explains this share of something, if it is needed and enough."""
        if isinstance(self.twin, OwnModelTwin) and self.tolerance < relative <= share:
            self.hidden[what] = max(self.hidden.get(what, 0.0), share)

    def _drawn(self, rounded: RoundingDraws[TwinStep], twin: TwinStep) -> dict[str, float]:
        """Of each layer, how far the furthest draw is off."""
        draws = [self._rounding_of(each, twin) for each in rounded.more]
        return {layer: max(finite(each.get(layer, 0.0)) for each in draws) for layer in self.layers}

    def _loss_of(self, step: int) -> float:
        return self.seen.loss(step - self.first)

    def _likely(
        self, step: int, loss: float, twin: TwinStep, compared: list[Difference]
    ) -> list[str]:
        experiment = self.experiment
        return likely_causes(
            compared,
            Losses(loss, twin.loss, self._microbatch_losses(step, twin)),
            max(self.tolerance, ROUNDING_FACTOR * self.rounding),
            experiment.microbatches,
            experiment.layout.replicas,
            self.stages,
        )

    def _microbatch_losses(self, step: int, twin: TwinStep) -> tuple[tuple[float, float], ...]:
        """Of a graph in one piece, those of the run's chunks."""
        graphs = self.experiment.data.facts().kind == "graphs"
        if len(twin.row_losses) > 1 or self.experiment.sampling is not None or graphs:
            return tuple((float(rows.sum()), float(n)) for rows, n in twin.row_losses)
        rows, _ = twin.row_losses[0]
        found = []
        for each in self.seen.targets:
            if (each.phase, each.step) == ("train", step) and each.ids is not None:
                own = each.ids[: len(each.targets["train"])][each.targets["train"] != IGNORED]
                found.append((float(rows[own].sum()), float(len(own))))
        return tuple(found)

    def _update(
        self, step: int, before: dict[str, Array], gradients: dict[str, Array], rule: OptimizerRule
    ) -> dict[str, Array]:
        """The parameters after the step, once they are what the rule makes of the gradients."""
        after = self._same_on_replicas(
            "parameters", lambda each: each.steps[step - self.first].parameters
        )
        expected = rule.after(before, gradients)
        self._parameters = differences(after, expected, self.layers)
        if self.causes:
            return after
        self.causes += [
            f"update: {name} moved in step {step} and does not train: what a forward moves must be "
            "a buffer"
            for name in sorted(self.twin.frozen & after.keys())
            if not np.array_equal(after[name], before[name], equal_nan=True)
        ]
        eps = EPS[self.experiment.dtype]
        for each, rounding in compare_moves(before, after, expected, self.layers, eps):
            cause = (
                f"{each.layer} moved {each.scale:.3g} times as far as the optimizer's rule says of "
                f"its own gradient in step {step}"
            )
            self._note("update", each.relative, cause, self.tolerance + rounding)
        return after

    def _buffers(
        self, what: str, tensors: TensorsOf, rounded: RoundingDraws[TwinStep] | None = None
    ) -> None:
        """Of built-in models sound code differs by less than the tolerance, whatever is rounded."""
        for replica in range(self.seen.replicas):
            expected = {n: array_of(b) for n, b in self.twin.buffers(replica).items()}
            ours = self.seen.of_replica(replica, tensors)
            for name, relative in compare_buffers(ours, expected):
                if self.causes:
                    return
                allowed = self.tolerance
                if relative > allowed and rounded is not None:
                    away = functools.partial(_buffer_away, replica, name, expected)
                    allowed = rounded.allowed(relative, allowed, away)
                    self._hide(f"buffer {name}", relative, allowed)
                self._note(what, relative, f"{name} on replica {replica} differs", allowed)
            if not self.causes:
                self.twin.restore(replica, ours, {})

    def _evaluation(self, parameters: dict[str, Array]) -> None:
        def taken(model: TwinModel) -> list[Activations]:
            return evaluate(model, pieces, parameters, 0)

        pieces = self.pieces("test", 0)
        began = self.twin.copied()
        activations = taken(self.twin)
        rounded = draws_of(began, self.single, taken, activations, lambda each: each)
        self._buffers("evaluation's statistics", lambda rank: rank.evaluation_buffers)
        self._inputs("test", 0, pieces)
        self._activations("test", 0, pieces, activations, rounded, lambda each: each)


def _away(
    number: int,
    exact: Activations,
    place: Place,
    activations_of: Callable[[T], Sequence[Activations]],
    drawn: T,
) -> float:
    """How far the output of the layer of this number is off in a draw, in one micro-batch."""
    return difference_at(place, [each[number] for each in activations_of(drawn)], exact)


def _buffer_away(replica: int, name: str, exact: Mapping[str, Array], drawn: TwinStep) -> float:
    """How far one buffer of a replica is off in a draw."""
    found = {n: array_of(b) for n, b in drawn.buffers.get(replica, {}).items()}
    return dict(compare_buffers(found, exact))[name]


def _worse(a: list[Difference], b: list[Difference]) -> list[Difference]:
    """Layer by layer the larger of two differences; of a layer that one lacks, the other's."""
    by_layer = {d.layer: d for d in a}
    for d in b:
        by_layer[d.layer] = max(d, by_layer.get(d.layer, d), key=lambda each: each.relative)
    return list(by_layer.values())


def _buffers_after(step: int, rank: RankSeen) -> Mapping[str, Array]:
    return rank.steps[step].buffers
