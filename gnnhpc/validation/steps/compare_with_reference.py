"""Compares what all ranks computed in a few steps with the reference, in the order of data flow.

Each step of the reference begins with the parameters and buffers that the ranks hold, so that the
first difference is the first error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from gnnhpc.models.custom_model import CustomModel
from gnnhpc.validation.reference.batches import Activation, Array, Batches, ReferenceBatch
from gnnhpc.validation.reference.fresh_layers import FreshLayers
from gnnhpc.validation.reference.training_step import (
    OptimizerRule,
    ReferenceStep,
    classification_metrics,
    clipped,
    evaluate,
    link_metrics,
    train_step,
)
from gnnhpc.validation.steps.captured_steps import INPUT, Capture, Kind, Place, array_of, sketch
from gnnhpc.validation.steps.difference_measures import (
    LAYER_KEEPS_STATE,
    When,
    explain_gradients,
    relative_difference,
    root_mean_square,
    sketch_difference,
    where_in,
    wrong_targets,
)
from gnnhpc.validation.steps.parity_slice import ParitySlice
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
Named = Mapping[str, Array]
"""Tensors by full name."""
Outputs = Sequence[Activation]
"""Of each batch."""


class Disagreement(Exception):  # noqa: N818
    """The ranks and the reference differ; the message is the cause."""


class StepComparison:
    """One comparison of all ranks with a reference."""

    def __init__(
        self, part: ParitySlice, captured: Capture, model: FreshLayers, batches: Batches
    ) -> None:
        self.worst: dict[str, float] = {}
        """The largest relative difference of each kind of quantity."""
        self.by_layer: dict[str, dict[str, float]] = {}
        """The same of each layer's outputs and gradients."""
        self._first, self._experiment = part.first, part.experiment
        self._captured, self._model, self._batches = captured, model, batches
        self._layers = [spec.name for spec in part.layer_specs]
        self._replicas = range(part.experiment.layout.replicas)
        microbatches = range(part.experiment.microbatches)
        self._places: list[Place] = list(itertools.product(self._replicas, microbatches))

    def run(self, dtype: torch.dtype) -> None:
        """Compare the slice's training steps, and the evaluation after them where there is one.

        A run that begins in `dtype` is compared with its seed's initial values first. Raises
        Disagreement at the first difference, and CheckError where rounding is all that is left of a
        gradient.
        """
        first, stop = self._first, self._experiment.train_steps
        if first == 0:
            initial = self._model.initial_parameters(dtype).items()
            expected = {name: array_of(parameter) for name, parameter in initial}
            allowed = TOLERANCE if dtype == torch.float64 else INITIAL_TOLERANCE
            for replica in self._replicas:
                actual = self._named("parameters", 0, replica)
                cause = f"on replica {replica} differs from what the seed gives"
                self._tensors("initial values", actual, expected, cause, allowed)
        rules = [self._start(first, replica) for replica in self._replicas]
        for step in range(first, stop):
            self._train_step(step, rules)
        if self._experiment.test_steps:
            self._evaluation(stop)

    def _named(self, kind: Kind, step: int, replica: int) -> Named:
        return self._captured.tensors[kind, step, replica]

    def _start(self, step: int, replica: int) -> OptimizerRule:
        """Take a replica's buffers and optimizer state, and compare its parameters with replica
        0's."""
        actual, expected = (self._named("parameters", step, each) for each in (replica, 0))
        cause = f"on replica {replica} differs from replica 0's"
        self._tensors("parameters", actual, expected, cause)
        self._model.restore(replica, self._named("buffers", step, replica))
        states = {name: dict(state) for name, state in self._captured.states[replica].items()}
        return OptimizerRule(self._experiment.optimizer, self._experiment.train_steps, states)

    def _train_step(self, step: int, rules: Sequence[OptimizerRule]) -> None:
        batches = self._batches("train", step)
        parameters = self._named("parameters", step, 0)
        expected = train_step(self._model, batches, parameters, self._experiment.outputs)
        self._data_flow(("train", step), batches, expected.activations)
        self._loss(step, expected)
        if step in self._captured.overwritten:
            where = f"in train step {step}, {self._captured.overwritten[step]}"
            raise Disagreement(f"gradients: {where} before its backward")
        self._gradients(step, expected)
        for replica, rule in enumerate(rules):
            self._update(step, replica, rule)
            buffers = self._named("buffers", step + 1, replica)
            self._buffers("buffers", replica, buffers)
            self._model.restore(replica, buffers)
        self._reported(("train", step))

    def _evaluation(self, after: int) -> None:
        batches = self._batches("test", 0)
        activations = evaluate(self._model, batches, self._named("parameters", after, 0))
        for replica in self._replicas:
            actual = self._named("evaluated", 0, replica)
            self._buffers("statistics in the evaluation", replica, actual)
        self._data_flow(("test", 0), batches, activations)
        self._reported(("test", 0))

    def _note(self, what: str, relative: float, cause: str, allowed: float = TOLERANCE) -> None:
        """Keep the largest difference of a kind; raises Disagreement where it is too large."""
        relative = relative if math.isfinite(relative) else math.inf
        self.worst[what] = max(self.worst.get(what, 0.0), relative)
        if relative > allowed:
            raise Disagreement(f"{what}: {cause} (relative difference {relative:.1e})")

    def _note_layer(self, layer: str, what: str, relative: float) -> None:
        found = self.by_layer.setdefault(layer, {})
        found[what] = max(found.get(what, 0.0), relative)

    def _tensors(
        self, what: str, actual: Named, expected: Named, cause: str, allowed: float = TOLERANCE
    ) -> None:
        """Compare tensors by name; running means relative to the standard deviation, if larger."""
        for name, value in expected.items():
            least = 0.0
            if name.endswith("running_mean"):
                spread = expected.get(name.removesuffix("mean") + "var", np.zeros(1))
                least = float(np.linalg.norm(np.sqrt(np.abs(spread))))
            relative = relative_difference(actual.get(name), value, least)
            self._note(what, relative, f"{name} {cause}", allowed)

    def _buffers(self, what: str, replica: int, actual: Mapping[str, Array]) -> None:
        expected = {name: array_of(b) for name, b in self._model.buffers[replica].items()}
        self._tensors(what, actual, expected, f"on replica {replica} differs")

    def _data_flow(
        self, when: When, batches: Sequence[ReferenceBatch], activations: Sequence[Outputs]
    ) -> None:
        """Compare inputs and targets, and then the outputs of each layer, first to last."""
        # A whole graph is one batch of all micro-batches.
        times = len(self._places) // len(batches)
        batches, activations = [*batches] * times, [*activations] * times
        before: Outputs = [batch.inputs for batch in batches]
        self._one_layer(when, INPUT, batches, before)
        for place, batch in zip(self._places, batches, strict=True):
            found = self._captured.outputs.get((*when, place))
            wrong = "it has none" if found is None else wrong_targets(found, batch)
            if wrong:
                raise Disagreement(f"targets: {where_in(when, place)}: {wrong}")
        for number, layer in enumerate(self._layers):
            expected = [each[number] for each in activations]
            self._one_layer(when, layer, batches, expected, before)
            before = expected

    def _one_layer(
        self,
        when: When,
        layer: str,
        batches: Sequence[ReferenceBatch],
        expected: Outputs,
        before: Outputs = (),
    ) -> None:
        """Compare one layer's outputs in all micro-batches, also those that are recomputed."""
        what, of_layer = ("outputs", f"{layer} in ") if layer else ("inputs", "")
        custom = layer and isinstance(self._experiment.model, CustomModel)
        for n, (place, batch) in enumerate(zip(self._places, batches, strict=True)):
            least = SMALL_MOVE * root_mean_square(before[n]) if before else 0.0
            where = of_layer + where_in(when, place)
            found = self._captured.activations.get((*when, layer, place))
            if found is None:
                raise Disagreement(f"{what}: {where} is not computed")
            for times, each in enumerate(found):
                relative, why = sketch_difference(each, batch, expected[n], least)
                why = f": {why}" if why else (LAYER_KEEPS_STATE if custom else "")
                if layer:
                    self._note_layer(layer, what, relative)
                self._note(what, relative, where + (", recomputed" if times else "") + why)

    def _loss(self, step: int, expected: ReferenceStep) -> None:
        actual = float(np.mean([self._captured.losses["train", step, r] for r in self._replicas]))
        # A small loss is what large scores leave of one another.
        scale = max(abs(expected.loss), 1e-4 * expected.largest_score)
        ratio = f", {actual / expected.loss:.6g} times as much" if expected.loss else ""
        cause = (
            f"step {step}: the loss is {actual:.8g} where {expected.loss:.8g} is expected{ratio}"
        )
        self._note("loss", abs(actual - expected.loss) / scale if scale else abs(actual), cause)

    def _gradients(self, step: int, reference: ReferenceStep) -> None:
        if reference.rounding > MOST_ROUNDING:
            raise CheckError(
                f"the loss of step {step} is {reference.loss:.1e}: what is left of its gradient is "
                "rounding"
            )
        expected = clipped(reference.gradients, self._experiment.optimizer.clip_norm)
        norms = [float(np.linalg.norm(gradient)) for gradient in expected.values()]
        least = SMALL_GRADIENT * max(norms, default=0.0)
        allowed = max(TOLERANCE, reference.rounding)
        for replica in self._replicas:
            actual = self._named("gradients", step, replica)
            # In the order of layers; the last one that is wrong is where backward goes wrong.
            by_layer = dict.fromkeys(self._layers, 0.0)
            for name, theirs in expected.items():
                ours = actual.get(name, np.zeros_like(theirs))
                layer = next(each for each in self._layers if name.startswith(f"{each}."))
                by_layer[layer] = max(by_layer[layer], relative_difference(ours, theirs, least))
            for layer, relative in by_layer.items():
                self._note_layer(layer, "gradient", relative)
            wrong = [layer for layer, relative in by_layer.items() if relative > allowed]
            cause = ""
            if wrong:
                cause = explain_gradients(actual, expected, wrong[-1], self._captured.stage_of)
            where = f"step {step}, replica {replica}: {cause}"
            self._note("gradients", max(by_layer.values()), where, allowed)

    def _update(self, step: int, replica: int, rule: OptimizerRule) -> None:
        """Compare the move of each parameter with the optimizer's rule for its own gradient."""
        before, after = (self._named("parameters", n, replica) for n in (step, step + 1))
        for name, move in rule.step(before, self._named("gradients", step, replica), step).items():
            least = SMALL_MOVE * float(np.linalg.norm(before[name]))
            actual = after[name] - before[name]
            factor = float(np.linalg.norm(actual)) / max(float(np.linalg.norm(move)), 1e-300)
            cause = (
                f"{name} on replica {replica} moves {factor:.3g} times as far in step {step} as "
                f"{self._experiment.optimizer.name}'s rule for its gradient"
            )
            self._note("update", relative_difference(actual, move, least), cause)

    def _reported(self, when: When) -> None:
        """Compare the engine's outputs with the last layer's, and metrics with those outputs'."""
        outputs: list[Tensor] = []
        targets: list[dict[str, Tensor]] = []
        for place in self._places:
            found = self._captured.outputs[*when, place]
            outputs.append(torch.from_numpy(found.output))
            targets.append({split: torch.from_numpy(x) for split, x in found.targets.items()})
            last = self._captured.activations[*when, self._layers[-1], place][0]
            relative = relative_difference(sketch(outputs[-1]), last.sketch)
            cause = f"{where_in(when, place)}, differs from the last layer's"
            self._note("returned outputs", relative, cause)
        if self._experiment.task is not None:
            expected = link_metrics(when[0], outputs, targets, self._experiment.task)
        else:
            expected = classification_metrics(when[0], outputs, targets, self._experiment.outputs)
        for replica in self._replicas:
            reported = self._captured.reported.get((*when, replica), {})
            for name, value in expected.items():
                actual = reported.get(name, math.nan)
                relative = relative_difference(np.array(actual), np.array(value), SMALL_GRADIENT)
                cause = (
                    f"{when[0]} step {when[1]}: {name} is reported as {actual} and is {value:.8g} "
                    "of the same outputs"
                )
                self._note("metrics", relative, cause)
