"""Compares what all ranks computed in a few steps with the reference, in the order of data flow.

Each step of the reference begins with the parameters and buffers that the ranks hold, so that the
first difference is the first error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.graph import IGNORED
from gnnhpc.records.schema import Phase
from gnnhpc.validation.captured_steps import (
    INPUT,
    CapturedActivation,
    CapturedStep,
    RankCapture,
    array_of,
    sketch,
)
from gnnhpc.validation.differences import (
    Place,
    batch_of,
    in_words,
    relative_difference,
    row_squares,
    sketch_difference,
    wrong_targets,
)
from gnnhpc.validation.likely_causes import (
    Setting,
    explain_gradients,
    explain_loss,
)
from gnnhpc.validation.reference.forward_pass import Activation
from gnnhpc.validation.reference.micro_batches import ReferenceBatch, ReferenceData
from gnnhpc.validation.reference.model import Array, ReferenceModel
from gnnhpc.validation.reference.optimizer_rule import OptimizerRule
from gnnhpc.validation.reference.step import (
    ReferenceStep,
    classification_metrics,
    evaluate,
    link_metrics,
    microbatch_gradients,
    train_step,
)

TOLERANCE = 1e-9
"""The largest relative difference of two tensors that agree."""
INITIAL_TOLERANCE = {"float32": 1e-6, "float64": TOLERANCE}
"""Of initial values, whose last bits depend on the instructions of a processor."""
SMALL_GRADIENT = 1e-3
"""A gradient below this share of the largest one is compared relative to that."""
SMALL_MOVE = 1e-5
"""A move below this share of its parameter is compared relative to that, as is an output below this
share of the layer's input: float64 keeps no more of it."""
MOST_ROUNDING = 1e-3
"""Gradients of which rounding may be more than this share cannot be compared."""


class Disagreement(Exception):  # noqa: N818
    """The ranks and the reference differ; the message is the cause."""


class NotComparable(Exception):  # noqa: N818
    """The numbers of a step cannot be compared; the message is the cause."""


@dataclass
class StepComparison:
    """One comparison of all ranks with a reference."""

    experiment: Experiment
    layers: Sequence[str]
    ranks: Sequence[RankCapture]
    model: ReferenceModel
    data: ReferenceData
    worst: dict[str, float] = field(default_factory=dict)
    """The largest relative difference of each kind of quantity."""
    outputs: dict[str, float] = field(default_factory=dict)
    """The largest relative difference of each layer's outputs."""
    gradients: dict[str, float] = field(default_factory=dict)
    """The same of its gradients."""

    def initial_values(self, dtype: str) -> None:
        """Compare the first parameters with those that the seed gives in a precision."""
        expected = self.model.initial(getattr(torch, dtype))
        for replica in range(self._replicas):
            actual = self._merged(replica, "parameters")
            for name, value in expected.items():
                relative = relative_difference(actual.get(name), array_of(value))
                cause = f"{name} on replica {replica} differs from what the seed gives"
                self._note("initial values", relative, cause, INITIAL_TOLERANCE[dtype])

    def run(self, steps: range) -> None:
        """Compare these training steps, and the evaluation after them where there is one.

        Raises Disagreement at the first difference, and NotComparable where rounding is all that
        is left of a gradient.
        """
        parameters = self._merged(0, "parameters")
        rules = []
        for replica in range(self._replicas):
            self.model.restore(replica, self._merged(replica, "buffers"))
            rules.append(OptimizerRule(self.experiment.optimizer, self._merged(replica, "moments")))
            for name, value in self._merged(replica, "parameters").items():
                cause = f"{name} on replica {replica} differs from replica 0's"
                self._note("parameters", relative_difference(value, parameters[name]), cause)
        for step in steps:
            parameters = self._train_step(step, parameters, rules)
        if self.experiment.test_steps:
            self._evaluation(parameters)

    def _train_step(
        self, step: int, parameters: dict[str, Array], rules: Sequence[OptimizerRule]
    ) -> dict[str, Array]:
        """Compare one step; gives replica 0's parameters after it."""
        batches = self.data.batches("train", step)
        outputs = self.experiment.outputs
        expected = train_step(self.model, batches, parameters, step, outputs)
        self._inputs("train", step, batches)
        self._layer_outputs("train", step, batches, expected.activations)
        self._loss(step, expected)
        self._gradients(step, batches, parameters, expected)
        for replica, rule in enumerate(rules):
            self._update(step, replica, parameters, rule)
            actual = self._merged_step(step, replica, "buffers")
            self._buffers("buffers", replica, actual)
            self.model.restore(replica, actual)
        self._reported("train", step)
        return self._merged_step(step, 0, "parameters")

    def _evaluation(self, parameters: dict[str, Array]) -> None:
        batches = self.data.batches("test", 0)
        activations = evaluate(self.model, batches, parameters, 0)
        for replica in range(self._replicas):
            actual = self._merged(replica, "evaluated_with")
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

    def _merged(self, replica: int, attribute: str) -> dict[str, Any]:
        """What the stages of one replica held, put together."""
        found: dict[str, Any] = {}
        for rank in self.ranks:
            if rank.replica == replica:
                found |= getattr(rank, attribute)
        return found

    def _steps(self, phase: Phase, step: int) -> Iterator[tuple[RankCapture, CapturedStep]]:
        for rank in self.ranks:
            for each in rank.steps:
                if (each.phase, each.step) == (phase, step):
                    yield rank, each

    def _merged_step(self, step: int, replica: int, attribute: str) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for rank, each in self._steps("train", step):
            if rank.replica == replica:
                found |= getattr(each, attribute)
        return found

    def _inputs(self, phase: Phase, step: int, batches: Sequence[ReferenceBatch]) -> None:
        inputs = [[batch.inputs] for batch in batches]
        self._one_layer("inputs", phase, step, INPUT, batches, [x[0] for x in inputs], None)
        found = {
            (t.replica, t.microbatch): t
            for rank in self.ranks
            for t in rank.targets
            if (t.phase, t.step) == (phase, step)
        }
        for place in self._places:
            where = f"{phase} step {step}, {in_words(place)}"
            if place not in found:
                raise Disagreement(f"targets: {where} has none")
            wrong = wrong_targets(found[place], batches[batch_of(place, batches)])
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
        before: Sequence[Activation] | None,
    ) -> None:
        """Compare one layer's outputs in all micro-batches, also those that are recomputed."""
        found: dict[Place, list[CapturedActivation]] = {}
        for rank in self.ranks:
            for each in rank.activations:
                if (each.phase, each.step, each.layer) == (phase, step, layer):
                    found.setdefault((each.replica, each.microbatch), []).append(each)
        sketches = [sketch(x) for x in expected]
        squares = [row_squares(x) for x in expected]
        for place in self._places:
            number = batch_of(place, batches)
            where = f"{layer} in " if layer else ""
            where += f"{phase} step {step}, {in_words(place)}"
            if place not in found:
                raise Disagreement(f"{what}: {where} is not computed")
            least = 0.0
            entered = None if before is None else row_squares(before[number])
            if entered is not None and len(entered):
                least = SMALL_MOVE * math.sqrt(float(np.mean(entered)))
            for times, each in enumerate(found[place]):
                relative, why = sketch_difference(
                    each, batches[number], sketches[number], squares[number], least
                )
                if each.trains != (phase == "train") and layer:
                    why = f"the layer is in {'training' if each.trains else 'evaluation'} mode"
                said = where + (", recomputed" if times else "") + (f": {why}" if why else "")
                self.outputs[layer] = max(self.outputs.get(layer, 0.0), relative)
                self._note(what, relative, said)

    def _loss(self, step: int, expected: ReferenceStep) -> None:
        actual = sum(each.loss for _, each in self._steps("train", step)) / self._replicas
        if not math.isfinite(expected.loss) and not math.isfinite(actual):
            raise NotComparable(f"the loss of step {step} is not finite in the reference either")
        # A small loss is what large scores leave of one another.
        scale = max(abs(expected.loss), 1e-4 * expected.largest_score)
        rows = self._microbatch_losses(step, expected)
        cause = f"step {step}: {explain_loss(actual, expected.loss, rows)}"
        self._note("loss", abs(actual - expected.loss) / scale if scale else abs(actual), cause)

    def _microbatch_losses(self, step: int, expected: ReferenceStep) -> list[tuple[float, int]]:
        """Each micro-batch's summed loss and counted rows; of a whole graph by who counts a row."""
        if len(expected.row_losses) == len(self._places):
            return [(float(rows.sum()), count) for rows, count in expected.row_losses]
        rows, _ = expected.row_losses[0]
        return [
            (float(rows[counts.numpy()].sum()), int(counts.sum()))
            for counts in self._counted_rows(step, len(rows)).values()
        ]

    def _counted_rows(self, step: int, rows: int) -> dict[Place, Tensor]:
        """Of a whole graph's rows, bool [rows], those that each micro-batch counts in its loss."""
        found = {}
        for rank in self.ranks:
            for each in rank.targets:
                if (each.phase, each.step) == ("train", step):
                    counts = torch.zeros(rows, dtype=torch.bool)
                    target = each.targets["train"]
                    mine = np.flatnonzero(target != IGNORED)
                    counts[each.nodes[mine] if each.nodes is not None else mine] = True
                    found[each.replica, each.microbatch] = counts
        return found

    def _gradients(
        self,
        step: int,
        batches: Sequence[ReferenceBatch],
        parameters: dict[str, Array],
        expected: ReferenceStep,
    ) -> None:
        if expected.rounding > MOST_ROUNDING:
            raise NotComparable(
                f"the loss of step {step} is {expected.loss:.1e}: what is left of its gradient is "
                "rounding"
            )
        norms = {name: float(np.linalg.norm(g)) for name, g in expected.gradients.items()}
        least = SMALL_GRADIENT * max(norms.values(), default=0.0)
        allowed = max(TOLERANCE, expected.rounding)
        setting = self._setting()
        for replica in range(self._replicas):
            actual = self._merged_step(step, replica, "gradients")
            wrong: dict[str, float] = {}
            for name, theirs in expected.gradients.items():
                relative = relative_difference(
                    actual.get(name, np.zeros_like(theirs)), theirs, least
                )
                layer = setting.layer_of(name)
                self.gradients[layer] = max(self.gradients.get(layer, 0.0), relative)
                if relative > allowed:
                    wrong[layer] = max(wrong.get(layer, 0.0), relative)
                self.worst["gradients"] = max(self.worst.get("gradients", 0.0), relative)
            if wrong:
                layers = [layer for layer in self.layers if layer in wrong]
                of = self._of_microbatches(step, batches, parameters, expected)
                cause = explain_gradients(actual, expected.gradients, layers, setting, of)
                where = f"step {step}, replica {replica}: {cause}"
                self._note("gradients", max(wrong.values()), where, allowed)

    def _setting(self) -> Setting:
        stages = {
            layer: rank.stage
            for rank in self.ranks
            for layer in self.layers
            if any(name.startswith(f"{layer}.") for name in rank.parameters)
        }
        return Setting(self.layers, stages, self.experiment.microbatches, self._replicas)

    def _of_microbatches(
        self,
        step: int,
        batches: Sequence[ReferenceBatch],
        parameters: dict[str, Array],
        expected: ReferenceStep,
    ) -> dict[Place, dict[str, Array]]:
        """The share of each micro-batch in the expected gradients."""
        total = sum(count for _, count in expected.row_losses)
        masks = [torch.ones(len(rows), dtype=torch.bool) for rows, _ in expected.row_losses]
        parts = {
            (batch.replica, batch.microbatch): (batch, mask)
            for batch, mask in zip(batches, masks, strict=True)
        }
        if len(batches) < len(self._places):
            counted = self._counted_rows(step, len(masks[0]))
            parts = {place: (batches[0], counts) for place, counts in counted.items()}
        outputs = self.experiment.outputs
        return {
            place: {
                name: value / total
                for name, value in microbatch_gradients(
                    self.model, batch, counts, parameters, step, outputs
                ).items()
            }
            for place, (batch, counts) in parts.items()
        }

    def _update(
        self, step: int, replica: int, before: dict[str, Array], rule: OptimizerRule
    ) -> None:
        """Compare the move of each parameter with the optimizer's rule for its own gradient."""
        after = self._merged_step(step, replica, "parameters")
        gradients = self._merged_step(step, replica, "gradients")
        for name, move in rule.step(before, gradients).items():
            least = SMALL_MOVE * float(np.linalg.norm(before[name]))
            actual = after[name] - before[name]
            factor = float(np.linalg.norm(actual)) / max(float(np.linalg.norm(move)), 1e-300)
            cause = (
                f"{name} on replica {replica} moves {factor:.3g} times as far in step {step} as "
                f"{self.experiment.optimizer.name}'s rule for its gradient"
            )
            if name not in gradients:
                cause = f"{name} on replica {replica} moves in step {step} and has no gradient"
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
        last = {
            (each.replica, each.microbatch): each
            for rank in self.ranks
            for each in rank.activations[::-1]
            if (each.phase, each.step, each.layer) == (phase, step, self.layers[-1])
        }
        targets = {
            (t.replica, t.microbatch): {s: torch.from_numpy(x) for s, x in t.targets.items()}
            for rank in self.ranks
            for t in rank.targets
            if (t.phase, t.step) == (phase, step)
        }
        outputs: dict[Place, Tensor] = {}
        for rank, each in self._steps(phase, step):
            for microbatch, output in enumerate(each.outputs):
                place = rank.replica, microbatch
                outputs[place] = torch.from_numpy(output)
                relative = relative_difference(sketch(outputs[place]), last[place].sketch)
                cause = f"{phase} step {step}, {in_words(place)}, differs from the last layer's"
                self._note("returned outputs", relative, cause)
        every = [outputs[place] for place in self._places]
        goals = [targets[place] for place in self._places]
        if self.experiment.task is not None:
            expected = link_metrics(phase, every, goals, self.experiment.task)
        else:
            expected = classification_metrics(phase, every, goals, self.experiment.outputs)
        for _, each in self._steps(phase, step):
            for name, value in expected.items() if each.outputs else ():
                relative = relative_difference(
                    np.array(each.reported.get(name, math.nan)), np.array(value), SMALL_GRADIENT
                )
                found = each.reported.get(name)
                cause = (
                    f"{phase} step {step}: {name} is reported as {found} and is {value:.8g} of "
                    "the same outputs"
                )
                self._note("metrics", relative, cause)
