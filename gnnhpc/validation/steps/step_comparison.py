"""Compares what all ranks computed in a few steps with the reference, in the order of data flow.

Each step of the reference begins with the parameters and buffers that the ranks hold, so that the
first difference is the first error.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.records.schema import Phase
from gnnhpc.validation.reference.batches import Activation, ReferenceBatch, ReferenceData
from gnnhpc.validation.reference.fresh_layers import FreshLayers
from gnnhpc.validation.reference.optimizer_rule import Array, OptimizerRule, clipped
from gnnhpc.validation.reference.training_step import (
    ReferenceStep,
    classification_metrics,
    evaluate,
    link_metrics,
    train_step,
)
from gnnhpc.validation.steps.captured_steps import (
    INPUT,
    Capture,
    Place,
    array_of,
    sketch,
)
from gnnhpc.validation.steps.differences import (
    batch_of,
    explain_gradients,
    in_words,
    relative_difference,
    root_mean_square,
    row_squares,
    sketch_difference,
    wrong_targets,
)
from gnnhpc.validation.verdicts import CheckError

TOLERANCE = 1e-9
"""The largest relative difference of two tensors that agree."""
INITIAL_TOLERANCE = 1e-6
"""Tolerance of initial values in single precision, whose last bits depend on the processor."""
SMALL_GRADIENT = 1e-3
"""A gradient below this share of the largest one is compared relative to that."""
SMALL_MOVE = 1e-5
"""A move below this share of its parameter is compared relative to that, as is an output below this
share of the layer's input: float64 keeps no more of it."""
MOST_ROUNDING = 1e-3
"""Gradients of which rounding may be more than this share cannot be compared."""
_LAYER_KEEPS_STATE = (
    ": a new copy of the layer gives another output for this micro-batch, so the layer keeps "
    "something from an earlier one (as PyG's cached=True keeps edges), or it reads rows that are "
    "not its own (x[-n:] instead of x[:n], a mean over all rows)"
)


class Disagreement(Exception):  # noqa: N818
    """The ranks and the reference differ; the message is the cause."""


@dataclass
class StepComparison:
    """One comparison of all ranks with a reference."""

    experiment: Experiment
    layers: Sequence[str]
    captured: Capture
    model: FreshLayers
    data: ReferenceData
    worst: dict[str, float] = field(default_factory=dict)
    """The largest relative difference of each kind of quantity."""
    outputs: dict[str, float] = field(default_factory=dict)
    """The largest relative difference of each layer's outputs."""
    gradients: dict[str, float] = field(default_factory=dict)
    """The same of its gradients."""

    def initial_values(self, expected: Mapping[str, Tensor]) -> None:
        """Compare the first parameters with those that the seed gives."""
        for replica in range(self._replicas):
            actual = self.captured.named("parameters", 0, replica)
            for name, value in expected.items():
                relative = relative_difference(actual.get(name), array_of(value))
                cause = f"{name} on replica {replica} differs from what the seed gives"
                allowed = TOLERANCE if value.dtype == torch.float64 else INITIAL_TOLERANCE
                self._note("initial values", relative, cause, allowed)

    def run(self, steps: range) -> None:
        """Compare these training steps, and the evaluation after them where there is one.

        Raises Disagreement at the first difference, and CheckError where rounding is all that is
        left of a gradient.
        """
        rules = [self._start(steps.start, replica) for replica in range(self._replicas)]
        for step in steps:
            self._train_step(step, rules)
        if self.experiment.test_steps:
            self._evaluation(steps.stop)

    def _start(self, step: int, replica: int) -> OptimizerRule:
        """Take a replica's buffers and optimizer state, and compare its parameters with replica
        0's."""
        expected = self.captured.named("parameters", step, 0)
        for name, value in self.captured.named("parameters", step, replica).items():
            cause = f"{name} on replica {replica} differs from replica 0's"
            self._note("parameters", relative_difference(value, expected[name]), cause)
        self.model.restore(replica, self.captured.named("buffers", step, replica))
        states = {n: dict(s) for (r, n), s in self.captured.states.items() if r == replica}
        return OptimizerRule(self.experiment.optimizer, self.experiment.train_steps, states)

    def _train_step(self, step: int, rules: Sequence[OptimizerRule]) -> None:
        batches = self.data.batches("train", step)
        parameters = self.captured.named("parameters", step, 0)
        expected = train_step(self.model, batches, parameters, self.experiment.outputs)
        gradients = clipped(expected.gradients, self.experiment.optimizer.clip_norm)
        expected = dataclasses.replace(expected, gradients=gradients)
        self._inputs("train", step, batches)
        self._layer_outputs("train", step, batches, expected.activations)
        self._loss(step, expected)
        self._inputs_kept(step)
        self._gradients(step, expected)
        for replica, rule in enumerate(rules):
            self._update(step, replica, rule)
            buffers = self.captured.named("buffers", step + 1, replica)
            self._buffers("buffers", replica, buffers)
            self.model.restore(replica, buffers)
        self._reported("train", step)

    def _evaluation(self, after: int) -> None:
        batches = self.data.batches("test", 0)
        parameters = self.captured.named("parameters", after, 0)
        activations = evaluate(self.model, batches, parameters)
        for replica in range(self._replicas):
            actual = {n: b for (r, n), b in self.captured.evaluated_with.items() if r == replica}
            self._buffers("statistics in the evaluation", replica, actual)
        self._inputs("test", 0, batches)
        self._layer_outputs("test", 0, batches, activations)
        self._reported("test", 0)

    def _note(self, what: str, relative: float, cause: str, allowed: float = TOLERANCE) -> None:
        """Keep the largest difference of a kind; raises Disagreement where it is too large."""
        relative = relative if math.isfinite(relative) else math.inf
        self.worst[what] = max(self.worst.get(what, 0.0), relative)
        if relative > allowed:
            raise Disagreement(f"{what}: {cause} (relative difference {relative:.1e})")

    @property
    def _replicas(self) -> int:
        return self.experiment.layout.replicas

    @property
    def _places(self) -> list[Place]:
        return [(r, m) for r in range(self._replicas) for m in range(self.experiment.microbatches)]

    def _inputs(self, phase: Phase, step: int, batches: Sequence[ReferenceBatch]) -> None:
        self._one_layer("inputs", phase, step, INPUT, batches, [b.inputs for b in batches])
        for place in self._places:
            where = f"{phase} step {step}, {in_words(place)}"
            found = self.captured.targets.get((phase, step, place))
            wrong = "it has none"
            if found is not None:
                wrong = wrong_targets(found, batches[batch_of(place, batches)])
            if wrong:
                raise Disagreement(f"targets: {where}: {wrong}")

    def _layer_outputs(
        self,
        phase: Phase,
        step: int,
        batches: Sequence[ReferenceBatch],
        activations: Sequence[Sequence[Activation]],
    ) -> None:
        before: list[Activation] = [batch.inputs for batch in batches]
        for number, layer in enumerate(self.layers):
            expected = [each[number] for each in activations]
            self._one_layer("outputs", phase, step, layer, batches, expected, before)
            before = expected

    def _one_layer(
        self,
        what: str,
        phase: Phase,
        step: int,
        layer: str,
        batches: Sequence[ReferenceBatch],
        expected: Sequence[Activation],
        before: Sequence[Activation] = (),
    ) -> None:
        """Compare one layer's outputs in all micro-batches, also those that are recomputed."""
        sketches = [sketch(x) for x in expected]
        squares = [row_squares(x) for x in expected]
        least = [SMALL_MOVE * root_mean_square(x) for x in before] or [0.0] * len(batches)
        custom = layer and isinstance(self.experiment.model, CustomModel)
        for place in self._places:
            n = batch_of(place, batches)
            where = f"{layer} in " if layer else ""
            where += f"{phase} step {step}, {in_words(place)}"
            found = self.captured.activations.get((phase, step, layer, place))
            if found is None:
                raise Disagreement(f"{what}: {where} is not computed")
            for times, each in enumerate(found):
                relative, why = sketch_difference(
                    each, batches[n], sketches[n], squares[n], least[n]
                )
                why = f": {why}" if why else (_LAYER_KEEPS_STATE if custom else "")
                if each.trains != (phase == "train") and layer:
                    why = f": the layer is in {'training' if each.trains else 'evaluation'} mode"
                self.outputs[layer] = max(self.outputs.get(layer, 0.0), relative)
                self._note(what, relative, where + (", recomputed" if times else "") + why)

    def _loss(self, step: int, expected: ReferenceStep) -> None:
        replicas = range(self._replicas)
        actual = sum(self.captured.losses["train", step, r] for r in replicas) / self._replicas
        # A small loss is what large scores leave of one another.
        scale = max(abs(expected.loss), 1e-4 * expected.largest_score)
        ratio = f", {actual / expected.loss:.6g} times as much" if expected.loss else ""
        cause = (
            f"step {step}: the loss is {actual:.8g} where {expected.loss:.8g} is expected{ratio}"
        )
        self._note("loss", abs(actual - expected.loss) / scale if scale else abs(actual), cause)

    def _inputs_kept(self, step: int) -> None:
        """Raises Disagreement where what a stage received changed before its backward."""
        for (number, layer, place), changed in self.captured.overwritten.items():
            if changed and number == step:
                raise Disagreement(
                    f"gradients: in train step {step}, {in_words(place)}, the input of {layer}, "
                    "the first layer of its stage, was overwritten before its backward"
                )

    def _gradients(self, step: int, expected: ReferenceStep) -> None:
        if expected.rounding > MOST_ROUNDING:
            raise CheckError(
                f"the loss of step {step} is {expected.loss:.1e}: what is left of its gradient is "
                "rounding"
            )
        norms = [float(np.linalg.norm(gradient)) for gradient in expected.gradients.values()]
        least = SMALL_GRADIENT * max(norms, default=0.0)
        allowed = max(TOLERANCE, expected.rounding)
        for replica in range(self._replicas):
            actual = self.captured.named("gradients", step, replica)
            # In the order of layers; the last one that is wrong is where backward goes wrong.
            by_layer = dict.fromkeys(self.layers, 0.0)
            for name, theirs in expected.gradients.items():
                ours = actual.get(name, np.zeros_like(theirs))
                layer = next(each for each in self.layers if name.startswith(f"{each}."))
                relative = relative_difference(ours, theirs, least)
                by_layer[layer] = max(by_layer[layer], relative)
                self.gradients[layer] = max(self.gradients.get(layer, 0.0), relative)
            wrong = [layer for layer, relative in by_layer.items() if relative > allowed]
            cause = ""
            if wrong:
                stages = self.captured.stage_of
                cause = explain_gradients(actual, expected.gradients, wrong[-1], stages)
            where = f"step {step}, replica {replica}: {cause}"
            self._note("gradients", max(by_layer.values()), where, allowed)

    def _update(self, step: int, replica: int, rule: OptimizerRule) -> None:
        """Compare the move of each parameter with the optimizer's rule for its own gradient."""
        before, after = (self.captured.named("parameters", n, replica) for n in (step, step + 1))
        gradients = self.captured.named("gradients", step, replica)
        for name, move in rule.step(before, gradients, step).items():
            least = SMALL_MOVE * float(np.linalg.norm(before[name]))
            actual = after[name] - before[name]
            factor = float(np.linalg.norm(actual)) / max(float(np.linalg.norm(move)), 1e-300)
            cause = (
                f"{name} on replica {replica} moves {factor:.3g} times as far in step {step} as "
                f"{self.experiment.optimizer.name}'s rule for its gradient"
            )
            self._note("update", relative_difference(actual, move, least), cause)

    def _buffers(self, what: str, replica: int, actual: Mapping[str, Array]) -> None:
        expected = {name: array_of(b) for name, b in self.model.buffers(replica).items()}
        for name, value in expected.items():
            least = 0.0
            if name.endswith("running_mean"):
                spread = expected.get(name.removesuffix("mean") + "var", np.zeros(1))
                least = float(np.linalg.norm(np.sqrt(np.abs(spread))))
            relative = relative_difference(actual.get(name), value, least)
            self._note(what, relative, f"{name} on replica {replica} differs")

    def _reported(self, phase: Phase, step: int) -> None:
        """Compare the engine's outputs with the last layer's, and metrics with those outputs'."""
        every: list[Tensor] = []
        goals = []
        for place in self._places:
            every.append(torch.from_numpy(self.captured.outputs[phase, step, place]))
            last = self.captured.activations[phase, step, self.layers[-1], place][0]
            relative = relative_difference(sketch(every[-1]), last.sketch)
            cause = f"{phase} step {step}, {in_words(place)}, differs from the last layer's"
            self._note("returned outputs", relative, cause)
            targets = self.captured.targets[phase, step, place].targets
            goals.append({split: torch.from_numpy(x) for split, x in targets.items()})
        if self.experiment.task is not None:
            expected = link_metrics(phase, every, goals, self.experiment.task)
        else:
            expected = classification_metrics(phase, every, goals, self.experiment.outputs)
        for replica in range(self._replicas):
            reported = self.captured.reported.get((phase, step, replica), {})
            for name, value in expected.items():
                found = reported.get(name, math.nan)
                relative = relative_difference(np.array(found), np.array(value), SMALL_GRADIENT)
                cause = (
                    f"{phase} step {step}: {name} is reported as {found} and is {value:.8g} of "
                    "the same outputs"
                )
                self._note("metrics", relative, cause)
