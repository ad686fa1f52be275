"""Likely causes of a wrong gradient or loss: a scale, a missing micro-batch, a zero."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnhpc.validation.reference.built_in_model import Array
from gnnhpc.validation.steps.captured_steps import Place
from gnnhpc.validation.steps.differences import in_words

CLOSE = 1e-6
"""A pattern is recognised where it explains all but this share of a difference."""
Gradients = Mapping[str, Array]


@dataclass(frozen=True)
class Setting:
    """The layers of a model, first to last, and what computes them."""

    layers: Sequence[str]
    stage_of: Mapping[str, int]
    microbatches: int
    replicas: int

    def layer_of(self, parameter: str) -> str:
        return next(
            (layer for layer in self.layers if parameter.startswith(f"{layer}.")), parameter
        )


def explain_gradients(
    actual: Gradients,
    expected: Gradients,
    wrong: Sequence[str],
    setting: Setting,
    of_microbatches: Mapping[Place, Gradients],
) -> str:
    """What the gradients of the layers `wrong`, first to last, look like, in words.

    `of_microbatches` has the share of each micro-batch in the expected gradients.
    """
    ours, theirs = _flat(actual, expected), _flat(expected, expected)
    return (
        _stages_without_gradient(actual, expected, setting)
        or _common_scale(ours, theirs, setting)
        or _microbatch_pattern(ours - theirs, of_microbatches, expected)
        or _one_layer(actual, expected, wrong[-1], setting)
    )


def _stages_without_gradient(
    actual: Gradients, expected: Gradients, setting: Setting
) -> str | None:
    norms: dict[int, list[float]] = {}
    for name, theirs in expected.items():
        stage = setting.stage_of.get(setting.layer_of(name))
        if stage is not None and np.any(theirs):
            ours = actual.get(name)
            norms.setdefault(stage, []).append(0.0 if ours is None else float(np.abs(ours).max()))
    without = sorted(stage for stage, each in norms.items() if not any(each))
    if not without:
        return None
    if len(without) == len(norms):
        return "all gradients are zero"
    which = ", ".join(map(str, without))
    return f"all gradients of stage {which} are zero: backward does not reach it"


def _common_scale(ours: Array, theirs: Array, setting: Setting) -> str | None:
    scale = _scale(ours, theirs)
    if scale is None:
        return None
    whole = setting.microbatches * setting.replicas
    named = {setting.microbatches: "micro-batches", setting.replicas: "replicas"}
    if setting.microbatches == setting.replicas:
        named = {setting.replicas: "micro-batches or replicas"}
    named.setdefault(whole, "micro-batches and replicas")
    for count, what in named.items():
        if count > 1 and math.isclose(scale, count, rel_tol=CLOSE):
            return f"all gradients are exactly {count} times the expected: a sum over {what}"
        if count > 1 and math.isclose(scale * count, 1.0, rel_tol=CLOSE):
            return f"all gradients are the expected ones divided by {count}, the {what}"
    return f"all gradients are {scale:.6g} times the expected"


def _microbatch_pattern(
    difference: Array, of_microbatches: Mapping[Place, Gradients], like: Gradients
) -> str | None:
    """Whether a micro-batch is missing, counts twice, or stands in the place of another."""
    parts = {place: _flat(found, like) for place, found in of_microbatches.items()}
    size = float(np.linalg.norm(difference))
    for place, part in parts.items():
        if float(np.linalg.norm(difference + part)) < CLOSE * size:
            return f"the gradient of {in_words(place)} is missing"
        if float(np.linalg.norm(difference - part)) < CLOSE * size:
            return f"the gradient of {in_words(place)} counts twice"
    for place, part in parts.items():
        for other, another in parts.items():
            if float(np.linalg.norm(difference + part - another)) < CLOSE * size:
                return f"the gradient of {in_words(place)} is that of {in_words(other)}"
    return None


def _one_layer(actual: Gradients, expected: Gradients, layer: str, setting: Setting) -> str:
    """What a layer's gradient looks like; the last wrong layer is where backward goes wrong."""
    names = [name for name in expected if setting.layer_of(name) == layer]
    theirs = {name: expected[name] for name in names}
    ours, flat = _flat(actual, theirs), _flat(theirs, theirs)
    after = "though its output and the layers after it agree"
    if not np.any(ours):
        return f"the gradient of {layer} is zero, {after}"
    if not np.isfinite(ours).all():
        return f"the gradient of {layer} is not finite, {after}"
    scale = _scale(ours, flat)
    if scale is not None:
        return f"the gradient of {layer} is {scale:.6g} times the expected, {after}"
    worst = max(
        names, key=lambda n: float(np.linalg.norm(actual.get(n, 0.0 * theirs[n]) - theirs[n]))
    )
    return f"the gradient of {layer} differs, {after}; most of it in {worst}"


def explain_loss(
    actual: float, expected: float, of_microbatches: Sequence[tuple[float, int]]
) -> str:
    """What a wrong loss looks like, by each micro-batch's summed loss and number of rows."""
    counted = [(total, count) for total, count in of_microbatches if count]
    for divisor in {len(of_microbatches), len(counted)} - {0}:
        mean = sum(total / count for total, count in counted) / divisor
        if math.isclose(actual, mean, rel_tol=CLOSE):
            return (
                "the loss is the mean of the micro-batches' means, which weighs a row by how few "
                "share its micro-batch"
            )
    ratio = f", {actual / expected:.6g} times as much" if expected else ""
    return f"the loss is {actual:.8g} where {expected:.8g} is expected{ratio}"


def _flat(gradients: Gradients, like: Gradients) -> Array:
    """All gradients in one array; a missing one is zero."""
    parts = [np.ravel(gradients.get(name, np.zeros_like(value))) for name, value in like.items()]
    return np.concatenate(parts) if parts else np.zeros(0)


def _scale(ours: Array, theirs: Array) -> float | None:
    """The factor between two arrays; None where no factor other than one explains them."""
    square = float(theirs @ theirs)
    if not square or not np.isfinite(ours).all():
        return None
    scale = float(ours @ theirs) / square
    left = float(np.linalg.norm(ours - scale * theirs))
    differs = abs(scale - 1.0) > CLOSE
    return scale if differs and left < CLOSE * float(np.linalg.norm(ours)) else None
