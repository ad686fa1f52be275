"""Compares gradients and parameters with the twin's, and names likely causes of a difference.

Pure functions of arrays. A difference is relative to the norm of the twin's whole layer, because
the gradient of a bias in front of a normalisation is rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}


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
class Losses:
    """A step's mean loss, the twin's, and those of the twin's micro-batches."""

    ours: float
    twin: float
    microbatches: tuple[tuple[float, float], ...] = ()
    """Of each micro-batch, the summed loss and how many labelled rows it has."""


@dataclass(frozen=True)
class Verdict:
    """The comparison of a few steps with the twin's."""

    tolerance: float
    loss: float
    """Of the first step."""
    twin_loss: float
    gradients: list[Difference]
    """Of each layer the largest over the steps."""
    parameters: list[Difference]
    """After the last step that was compared, against the optimizer's rule."""
    kinks: int = 0
    """Scores at the leaky ReLU's kink whose other slope fitted better."""
    causes: list[str] = field(default_factory=list)
    """Likely causes of a difference, likeliest first; empty if there is none."""
    worst_of: Mapping[str, float] = field(default_factory=dict)
    """The largest relative difference of each kind of thing compared."""
    rounding: float = 0.0
    """What single precision alone makes of a layer's gradient in the twin; 0 if not measured."""
    lost: list[str] = field(default_factory=list)
    """Layers of which a step told nothing, their gradient being rounding alone, or nearly; such a
    step is not among `gradients`."""
    dead: list[str] = field(default_factory=list)
    """Layers whose gradient was exactly zero in every step, as the twin's was."""
    hidden: Mapping[str, float] = field(default_factory=dict)
    """Of a user's own model, in words, what differed by more than the tolerance, and the share of
    it that rounding explains."""

    @property
    def worst(self) -> float:
        """The largest relative difference of a layer's gradient; infinite where it is no number."""
        return largest(self.gradients)

    @property
    def worst_parameters(self) -> float:
        """The largest relative difference of a layer's parameters after the last step."""
        return largest(self.parameters)

    @property
    def passed(self) -> bool:
        return not self.causes


def largest(found: Sequence[Difference]) -> float:
    """The largest relative difference; infinite where one is no number."""
    values = [d.relative for d in found]
    return max((v if math.isfinite(v) else math.inf for v in values), default=0.0)


def layer_of(parameter: str, layers: list[str]) -> str:
    """The layer whose name the parameter's begins with."""
    for layer in layers:
        if parameter.startswith(layer + "."):
            return layer
    return parameter


def differences(
    ours: Mapping[str, Array],
    twin: Mapping[str, Array],
    layers: list[str],
) -> list[Difference]:
    """The difference of each layer; a tensor that is missing on our side counts as zero."""
    grouped: dict[str, list[tuple[Array, Array]]] = {}
    for name, expected in twin.items():
        found = ours.get(name, np.zeros_like(expected))
        grouped.setdefault(layer_of(name, layers), []).append((found, expected))
    return [_difference(layer, pairs) for layer, pairs in grouped.items()]


def _difference(layer: str, pairs: list[tuple[Array, Array]]) -> Difference:
    found = np.concatenate([ours.ravel() for ours, _ in pairs])
    expected = np.concatenate([twin.ravel() for _, twin in pairs])
    norm, twin_norm = float(np.linalg.norm(found)), float(np.linalg.norm(expected))
    safe = max(twin_norm, 1e-300)
    scale = float(found @ expected) / twin_norm**2 if twin_norm > 1e-150 else 0.0
    residual = float(np.linalg.norm(found - scale * expected)) / max(norm, 1e-300)
    return Difference(
        layer, float(np.linalg.norm(found - expected)) / safe, norm, twin_norm, scale, residual
    )


def likely_causes(
    compared: list[Difference],
    losses: Losses,
    tolerance: float,
    microbatches: int,
    replicas: int,
    stages: Mapping[str, int],
) -> list[str]:
    """Why a loss or gradients may differ from the twin's where activations agree.

    `compared` are the layers' gradients, first to last; `stages` says which stage holds a layer.
    """
    causes = _stages_without_gradient(compared, stages) + _masked_means(losses)
    if causes:
        return causes
    worst = largest(compared)
    scale = _common_scale(compared) if worst > tolerance else None
    alike = "micro-batches or replicas" if microbatches == replicas else ""
    for factor, what in (
        (microbatches, alike or "micro-batches"),
        (replicas, alike or "replicas"),
        (microbatches * replicas, "micro-batches and replicas"),
    ):
        if scale is None or factor == 1:
            continue
        if math.isclose(scale, factor, rel_tol=1e-3):
            return [f"summed: gradients are {factor} times the twin's, summed over {what}"]
        if math.isclose(scale * factor, 1.0, rel_tol=1e-3):
            return [f"scale: gradients are the twin's divided by {factor} {what} once more"]
    if scale is not None and not math.isclose(scale, 1.0, rel_tol=1e-3):
        return [f"scale: gradients are {scale:.6g} times the twin's in every layer"]
    if worst <= tolerance:
        return [f"loss: {losses.ours:.8g} where the twin has {losses.twin:.8g} of the same outputs"]
    # Backward goes from the last layer to the first: what goes wrong in one reaches those before.
    wrong = [d for d in compared if not d.relative <= tolerance]
    return [
        f"gradients: {wrong[-1].layer} differs by {wrong[-1].relative:.2e} though its output and "
        "the layers after it agree"
    ]


def _stages_without_gradient(
    compared: Sequence[Difference], stages: Mapping[str, int]
) -> list[str]:
    without = sorted(
        {stages[d.layer] for d in compared if d.layer in stages and d.norm == 0.0 < d.twin_norm}
        - {stages[d.layer] for d in compared if d.layer in stages and d.norm > 0.0}
    )
    if not without:
        return []
    return [f"backward: stages {without} have no gradient, backward did not cross the cut"]


def _masked_means(losses: Losses) -> list[str]:
    """Whether our loss is the mean of the micro-batches' means over their labelled rows."""
    pairs = [(total, count) for total, count in losses.microbatches if count]
    if len(losses.microbatches) < 2 or not pairs:
        return []
    for divisor in {len(losses.microbatches), len(pairs)}:
        mean = sum(total / count for total, count in pairs) / divisor
        if math.isclose(losses.ours, mean, rel_tol=1e-4) and not math.isclose(
            losses.ours, losses.twin, rel_tol=1e-4
        ):
            return [
                "masked means: the loss is the mean of the micro-batches' means, which weighs a "
                "labelled row by how few share its micro-batch"
            ]
    if math.isnan(losses.ours) and len(pairs) < len(losses.microbatches):
        return ["masked means: a micro-batch without a labelled row has no mean"]
    return []


def _common_scale(compared: Sequence[Difference]) -> float | None:
    """One factor that explains every layer's difference, else None."""
    seen = [d for d in compared if d.twin_norm > 0]
    if not seen or any(d.residual > 1e-3 for d in seen):
        return None
    scales = [d.scale for d in seen]
    return scales[0] if max(scales) - min(scales) < 1e-3 * abs(scales[0]) else None
