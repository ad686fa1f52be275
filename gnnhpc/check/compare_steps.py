"""Holds what ranks computed in a few steps against the twin, in the order in which data flow.

Every step of the twin begins at the run's own parameters, so that one step's rounding is not the
next one's difference; the optimizer's rule says whether those parameters are right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gnnhpc.check.capture import INPUT, Array, RankSeen
from gnnhpc.check.compare_activations import (
    compare_activations,
    compare_targets,
    largest_difference,
    repeated_forwards,
)
from gnnhpc.check.compare_gradients import (
    TOLERANCE,
    Difference,
    Losses,
    Verdict,
    differences,
    likely_causes,
)
from gnnhpc.check.kinks import explain_by_kinks
from gnnhpc.check.twin.optimizer_rule import OptimizerRule
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.training import Activations, TwinModel, TwinStep, evaluate, train_step
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.records.schema import Phase
from gnnhpc.spec.experiment import Experiment

EPS = {"float32": 2.0**-23, "float64": 2.0**-52}
ROUNDING_FACTOR = 8.0
"""Times what single precision makes of the twin's own gradients: another order of the same sums,
and another exponential, have been seen to make four times as much of healthy cells. Where a softmax
is saturated, or a layer's gradient is what large ones leave of each other, that is more than the
tolerance."""
TensorsOf = Callable[[RankSeen], Mapping[str, Array]]
LOSS_FACTOR = 10.0
"""A loss is a sum over rows of differences of logarithms: its rounding is more than a layer's."""


@dataclass
class StepComparison:
    """One comparison of all ranks with the twin; `pieces(phase, step)` are the twin's inputs."""

    experiment: Experiment
    layers: list[str]
    stages: Mapping[str, int]
    """Which stage holds a layer."""
    seen: Sequence[RankSeen]
    """By rank."""
    final: Mapping[str, float]
    """The metrics that the run reports after its evaluation; empty without one."""
    twin: TwinModel
    pieces: Callable[[Phase, int], list[Piece]]
    single: TwinModel | None = None
    """The twin in single precision, for a run in it."""
    worst: dict[str, float] = field(default_factory=dict)
    """The largest relative difference of each kind of thing compared."""
    causes: list[str] = field(default_factory=list)
    kinks: int = 0
    rounding: float = 0.0
    """What single precision alone makes of a layer's gradient in the twin."""
    _gradients: list[Difference] = field(default_factory=list)
    _parameters: list[Difference] = field(default_factory=list)
    _losses: tuple[float, float] = (0.0, 0.0)

    def run(self, invalid: Mapping[str, str]) -> Verdict:
        """The verdict; `invalid` are the findings of the audit of the same steps."""
        before = self._initial()
        rule = OptimizerRule(self.experiment.optimizer, self.experiment.dtype)
        outputs = self.experiment.model.loaded.outputs
        for step in range(len(self.seen[0].steps)):
            pieces = self.pieces("train", step)
            twin = train_step(self.twin, pieces, before, step, outputs)
            rounded = None
            if self.single is not None:
                single = train_step(self.single, pieces, before, step, outputs)
                eps = EPS[self.experiment.dtype]
                explained = explain_by_kinks(single.gradients, twin, eps)
                compared = differences(single.gradients, explained.gradients, self.layers)
                self.rounding = max([self.rounding, *(d.relative for d in compared)])
                rounded = single.activations
            self._inputs("train", step, pieces)
            self._activations("train", step, pieces, twin.activations, rounded)
            self._loss(step, twin)
            gradients = self._gradients_of(step, twin)
            before = self._update(step, before, gradients, rule)
            self._buffers("buffers", [s.steps[step].buffers for s in self.seen])
            if self.causes:
                break
        if not self.causes and self.final:
            self._evaluation(before)
        return Verdict(
            self.tolerance,
            *self._losses,
            self._gradients,
            self._parameters,
            self.kinks,
            [f"{name}: {detail}" for name, detail in invalid.items()] + self.causes,
            self.worst,
            self.rounding,
        )

    @property
    def tolerance(self) -> float:
        return TOLERANCE[self.experiment.dtype]

    def _note(self, what: str, relative: float, cause: str, allowed: float | None = None) -> None:
        """Keep the largest difference; add the cause where it is too large, or no number."""
        relative = relative if math.isfinite(relative) else math.inf
        self.worst[what] = max(self.worst.get(what, 0.0), relative)
        if relative > (self.tolerance if allowed is None else allowed):
            self.causes.append(f"{what}: {cause} ({relative:.2e})")

    def _replica(
        self, number: int, of: Callable[[RankSeen], Mapping[str, Array]]
    ) -> dict[str, Array]:
        """All stages' tensors of one replica."""
        found: dict[str, Array] = {}
        for each in self.seen:
            if each.replica == number:
                found |= of(each)
        return found

    def _equal_replicas(
        self, what: str, of: Callable[[RankSeen], Mapping[str, Array]]
    ) -> dict[str, Array]:
        """Replica 0's tensors, once all others have the same bits."""
        first = self._replica(0, of)
        for replica in range(1, self.experiment.layout.replicas):
            other = self._replica(replica, of)
            for name, value in first.items():
                if not np.array_equal(value, other.get(name, np.nan), equal_nan=True):
                    self.causes.append(
                        f"replicas: {what} of {name} on replica {replica} are other ones"
                    )
                    return first
        return first

    def _initial(self) -> dict[str, Array]:
        expected = {n: v.double().numpy() for n, v in self.twin.initial().items()}
        found = self._equal_replicas("initial values", lambda each: each.initial)
        for each in differences(found, expected, self.layers):
            self._note("initial values", each.relative, f"{each.layer} has not its seed's")
        return found

    def _inputs(self, phase: Phase, step: int, pieces: Sequence[Piece]) -> None:
        if self.causes:
            return
        activations = [a for s in self.seen for a in s.activations]
        targets = [t for s in self.seen for t in s.targets]
        found = compare_activations(
            activations, phase, step, INPUT, pieces, [p.inputs for p in pieces]
        )
        self._note("inputs", found.relative, f"{phase} step {step}, {found.where}")
        wrong = compare_targets(targets, phase, step, pieces)
        if wrong:
            self.causes.append(f"labels: {phase} step {step}, {wrong}")

    def _activations(
        self,
        phase: Phase,
        step: int,
        pieces: Sequence[Piece],
        twin: Sequence[Activations],
        rounded: Sequence[Activations] | None,
    ) -> None:
        if self.causes:
            return
        seen = [a for s in self.seen for a in s.activations]
        places = self.experiment.layout.replicas * self.experiment.microbatches
        for number, layer in enumerate(self.layers):
            repeated = repeated_forwards(seen, phase, step, layer, places)
            if repeated:
                self.causes.append(f"outputs: {layer} in {phase} step {step} {repeated}")
                return
            outputs = [each[number] for each in twin]
            found = compare_activations(seen, phase, step, layer, pieces, outputs)
            allowed = self.tolerance
            if rounded is not None:
                here = [each[number] for each in rounded]
                allowed = max(allowed, ROUNDING_FACTOR * largest_difference(here, outputs))
            cause = f"{layer} in {phase} step {step}, {found.where}"
            self._note("outputs", found.relative, cause, allowed)
            if self.causes:
                return

    def _loss(self, step: int, twin: TwinStep) -> None:
        ours = sum(s.steps[step].loss for s in self.seen) / self.experiment.layout.replicas
        if step == 0:
            self._losses = ours, twin.loss
        if self.causes:
            return
        relative = abs(ours - twin.loss) / max(abs(twin.loss), 1e-30)
        relative = relative if math.isfinite(relative) else math.inf
        self.worst["loss"] = max(self.worst.get("loss", 0.0), relative)
        if relative > LOSS_FACTOR * self.tolerance:
            self.causes += self._likely(step, ours, twin, differences({}, {}, self.layers))

    def _gradients_of(self, step: int, twin: TwinStep) -> dict[str, Array]:
        found = self._equal_replicas("gradients", lambda each: each.steps[step].gradients)
        expected = twin.gradients
        compared = differences(found, expected, self.layers)
        allowed = max(self.tolerance, ROUNDING_FACTOR * self.rounding)
        if max((d.relative for d in compared), default=0.0) > allowed and not self.causes:
            explained = explain_by_kinks(found, twin, EPS[self.experiment.dtype])
            self.kinks += explained.kinks
            compared = differences(found, explained.gradients, self.layers)
        self._gradients = _worse(self._gradients, compared)
        worst = max((d.relative for d in compared), default=0.0)
        worst = worst if math.isfinite(worst) else math.inf
        self.worst["gradients"] = max(self.worst.get("gradients", 0.0), worst)
        if worst > allowed and not self.causes:
            ours = sum(s.steps[step].loss for s in self.seen) / self.experiment.layout.replicas
            self.causes += self._likely(step, ours, twin, compared)
        return found

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
        if len(twin.row_losses) > 1:
            return tuple((float(rows.sum()), float(n)) for rows, n in twin.row_losses)
        rows, _ = twin.row_losses[0]
        found = []
        for each in (t for s in self.seen for t in s.targets):
            if (each.phase, each.step) == ("train", step) and each.ids is not None:
                own = each.ids[: len(each.targets["train"])][each.targets["train"] != IGNORED]
                found.append((float(rows[own].sum()), float(len(own))))
        return tuple(found)

    def _update(
        self, step: int, before: dict[str, Array], gradients: dict[str, Array], rule: OptimizerRule
    ) -> dict[str, Array]:
        """The parameters after the step, once they are what the rule makes of the gradients."""
        after = self._equal_replicas("parameters", lambda each: each.steps[step].parameters)
        expected = rule.after(before, gradients)
        self._parameters = differences(after, expected, self.layers)
        if self.causes:
            return after
        moved = {name: expected[name] - value for name, value in before.items()}
        ours = {name: after[name] - value for name, value in before.items()}
        norms = {d.layer: d.twin_norm for d in differences(before, before, self.layers)}
        for each in differences(ours, moved, self.layers):
            if each.twin_norm == 0.0:
                continue
            rounding = 4 * EPS[self.experiment.dtype] * norms[each.layer] / each.twin_norm
            cause = (
                f"{each.layer} moved {each.scale:.3g} times as far as the optimizer's rule says of "
                f"its own gradient in step {step}"
            )
            self._note("update", each.relative, cause, self.tolerance + rounding)
        return after

    def _buffers(self, what: str, found: Sequence[Mapping[str, Array]]) -> None:
        for replica in range(self.experiment.layout.replicas):
            ours: dict[str, Array] = {}
            for rank, each in enumerate(self.seen):
                if each.replica == replica:
                    ours |= found[rank]
            expected = {n: b.double().numpy() for n, b in self.twin.buffers(replica).items()}
            for name, value in expected.items():
                if self.causes:
                    return
                mean = name.endswith("running_mean")
                spread = expected[name.removesuffix("mean") + "var"] if mean else 0.0
                scale = float(np.linalg.norm(value) + np.linalg.norm(np.sqrt(spread)))
                away = float(np.linalg.norm(ours.get(name, np.nan) - value))
                relative = away / scale if scale else away
                self._note(what, relative, f"{name} on replica {replica} differs")

    def _evaluation(self, parameters: dict[str, Array]) -> None:
        pieces = self.pieces("test", 0)
        activations = evaluate(self.twin, pieces, parameters, 0)
        rounded = None
        if self.single is not None:
            rounded = evaluate(self.single, pieces, parameters, 0)
        self._buffers("evaluation's statistics", [s.evaluation_buffers for s in self.seen])
        self._inputs("test", 0, pieces)
        self._activations("test", 0, pieces, activations, rounded)


def _worse(a: list[Difference], b: list[Difference]) -> list[Difference]:
    """Layer by layer the larger of two differences."""
    by_layer = {d.layer: d for d in a}
    return [max(d, by_layer.get(d.layer, d), key=lambda each: each.relative) for d in b]
