"""Compares gradients and parameters with the twin's, and names the likely cause of a difference.

Pure functions of arrays. A difference is relative to the norm of the twin's whole layer, because
the gradient of a bias in front of a normalisation is rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
ROUNDING_SHARE = 1e-3
"""Below this share of its layer's root mean square, a gradient's element is mostly rounding."""


@dataclass(frozen=True)
class Difference:
    """One layer: `relative` is |ours - twin| / |twin| over all its tensors."""

    layer: str
    relative: float
    norm: float
    twin_norm: float
    scale: float
    """The factor that brings the twin closest to ours, by least squares."""
    residual: float
    """What is left of the relative difference once that factor is taken out."""


@dataclass(frozen=True)
class StepsTaken:
    """One side of a comparison: the first step's loss and gradients, the last step's parameters."""

    loss: float
    gradients: Mapping[str, Array]
    parameters: Mapping[str, Array]
    microbatch_losses: tuple[tuple[float, float], ...] = ()
    """Of each micro-batch, the summed loss and how many labelled rows it has."""


@dataclass(frozen=True)
class Verdict:
    """The comparison of a layout with its sequential twin."""

    tolerance: float
    loss: float
    twin_loss: float
    gradients: list[Difference]
    parameters: list[Difference]
    """After the last step, without the elements that are left out."""
    left_out: int
    """Elements left out as their gradient is mostly rounding: Adam scales it to full steps."""
    causes: list[str] = field(default_factory=list)
    """Likely causes of a difference, likeliest first; empty if there is none."""

    @property
    def loss_difference(self) -> float:
        difference = abs(self.loss - self.twin_loss) / max(abs(self.twin_loss), 1e-30)
        return difference if math.isfinite(difference) else math.inf

    @property
    def worst(self) -> float:
        """The largest relative difference of a layer's gradient; infinite where it is no number."""
        return _largest(self.gradients)

    @property
    def worst_parameters(self) -> float:
        """The largest relative difference of a layer's parameters after the last step."""
        return _largest(self.parameters)

    @property
    def passed(self) -> bool:
        return not self.causes and max(self.worst, self.worst_parameters) <= self.tolerance


def _largest(found: Sequence[Difference]) -> float:
    values = [d.relative for d in found]
    return max((v if math.isfinite(v) else math.inf for v in values), default=0.0)


def layer_of(parameter: str, layers: list[str]) -> str:
    """The layer whose name the parameter's begins with."""
    for layer in layers:
        if parameter.startswith(layer + "."):
            return layer
    return parameter


def above_rounding(gradients: Mapping[str, Array], layers: list[str]) -> dict[str, Mask]:
    """Of each tensor, the elements whose gradient is more than rounding.

    A bias in front of a normalisation has none: its true gradient is zero.
    """
    squares: dict[str, list[float]] = {}
    for name, gradient in gradients.items():
        total = squares.setdefault(layer_of(name, layers), [0.0, 0.0])
        total[0] += float(np.sum(np.square(gradient)))
        total[1] += gradient.size
    scale = {layer: math.sqrt(total / count) for layer, (total, count) in squares.items()}
    return {
        name: np.abs(gradient) > ROUNDING_SHARE * scale[layer_of(name, layers)]
        for name, gradient in gradients.items()
    }


def differences(
    ours: Mapping[str, Array],
    twin: Mapping[str, Array],
    layers: list[str],
    only: Mapping[str, Mask] | None = None,
) -> list[Difference]:
    """The difference of each layer; a tensor that is missing on our side counts as zero.

    `only` has the elements that count; all elements of a tensor that it does not name.
    """
    grouped: dict[str, list[tuple[Array, Array]]] = {}
    for name, expected in twin.items():
        found = ours.get(name, np.zeros_like(expected))
        counted = (only or {}).get(name, np.ones_like(expected, dtype=np.bool_))
        pair = (found[counted], expected[counted])
        grouped.setdefault(layer_of(name, layers), []).append(pair)
    return [_difference(layer, pairs) for layer, pairs in grouped.items()]


def _difference(layer: str, pairs: list[tuple[Array, Array]]) -> Difference:
    found = np.concatenate([ours.ravel() for ours, _ in pairs])
    expected = np.concatenate([twin.ravel() for _, twin in pairs])
    norm, twin_norm = float(np.linalg.norm(found)), float(np.linalg.norm(expected))
    safe = max(twin_norm, 1e-300)
    scale = float(found @ expected) / safe**2
    residual = float(np.linalg.norm(found - scale * expected)) / max(norm, 1e-300)
    return Difference(
        layer, float(np.linalg.norm(found - expected)) / safe, norm, twin_norm, scale, residual
    )


def compare(
    ours: StepsTaken,
    twin: StepsTaken,
    layers: list[str],
    *,
    dtype: str,
    microbatches: int,
    replicas: int,
    stages: dict[str, int],
    invalid: Mapping[str, str],
) -> Verdict:
    """Compare ours with the twin's and name the likely cause of a difference.

    `stages` says which stage a layer is on; `invalid` are the audit's own findings by name.
    """
    tolerance = TOLERANCE[dtype]
    gradients = differences(ours.gradients, twin.gradients, layers)
    counted = above_rounding(twin.gradients, layers)
    parameters = differences(ours.parameters, twin.parameters, layers, counted)
    left_out = sum(int(mask.size - mask.sum()) for mask in counted.values())
    verdict = Verdict(tolerance, ours.loss, twin.loss, gradients, parameters, left_out)
    causes = [f"{name}: {detail}" for name, detail in invalid.items()]
    if verdict.worst > tolerance or verdict.loss_difference > 10 * tolerance:
        causes += _diagnose(verdict, ours, twin, microbatches, replicas, stages)
    elif verdict.worst_parameters > tolerance:
        worst = max(parameters, key=lambda d: d.relative)
        causes.append(
            f"parameters: {worst.layer} differs by {worst.relative:.2e} after the last step though "
            "the first gradient agrees; the optimizer, or what one step leaves to the next"
        )
    return replace(verdict, causes=causes)


def _diagnose(
    verdict: Verdict,
    ours: StepsTaken,
    twin: StepsTaken,
    microbatches: int,
    replicas: int,
    stages: dict[str, int],
) -> list[str]:
    causes = _stages_without_gradient(verdict, stages) + _masked_means(ours, twin)
    if causes:
        return causes
    scale = _common_scale(verdict) if verdict.worst > verdict.tolerance else None
    for factor, what in (
        (microbatches, "micro-batches"),
        (replicas, "replicas"),
        (microbatches * replicas, "micro-batches and replicas"),
    ):
        if scale is not None and factor > 1 and math.isclose(scale, factor, rel_tol=1e-3):
            return [f"summed: gradients are {factor} times the twin's, summed over {what}"]
    if scale is not None:
        return [f"scale: gradients are {scale:.6g} times the twin's in every layer"]
    if verdict.loss_difference > 10 * verdict.tolerance:
        return [
            f"loss: {ours.loss:.8g} where the twin has {twin.loss:.8g}; inputs, labels or "
            "parameters are not the twin's"
        ]
    worst = max(verdict.gradients, key=lambda d: d.relative)
    return [f"gradients: {worst.layer} differs by {worst.relative:.2e} though the loss agrees"]


def _stages_without_gradient(verdict: Verdict, stages: dict[str, int]) -> list[str]:
    without = sorted(
        {stages[d.layer] for d in verdict.gradients if d.layer in stages and d.norm == 0.0}
        - {stages[d.layer] for d in verdict.gradients if d.layer in stages and d.norm > 0.0}
    )
    if not without:
        return []
    return [f"backward: stages {without} have no gradient, backward did not cross the cut"]


def _masked_means(ours: StepsTaken, twin: StepsTaken) -> list[str]:
    """Whether our loss is the mean of the micro-batches' means over their labelled rows."""
    pairs = [(total, count) for total, count in twin.microbatch_losses if count]
    if len(twin.microbatch_losses) < 2 or not pairs:
        return []
    for divisor in {len(twin.microbatch_losses), len(pairs)}:
        mean = sum(total / count for total, count in pairs) / divisor
        if math.isclose(ours.loss, mean, rel_tol=1e-4) and not math.isclose(
            ours.loss, twin.loss, rel_tol=1e-4
        ):
            return [
                "masked means: the loss is the mean of the micro-batches' means, which weighs a "
                "labelled row by how few share its micro-batch"
            ]
    if math.isnan(ours.loss) and len(pairs) < len(twin.microbatch_losses):
        return ["masked means: a micro-batch without a labelled row has no mean"]
    return []


def _common_scale(verdict: Verdict) -> float | None:
    """One factor that explains every layer's difference, else None."""
    seen = [d for d in verdict.gradients if d.twin_norm > 0]
    if not seen or any(d.residual > 1e-3 for d in seen):
        return None
    scales = [d.scale for d in seen]
    return scales[0] if max(scales) - min(scales) < 1e-3 * abs(scales[0]) else None
