"""What ranks learn from: gradients, the loss they come from, how replicas share them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.check.watches.gradient_norms import GradientNorms
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.core.layout import Layout
from gnnhpc.records.schema import Check


def gradients(
    observations: Sequence[RankObservations],
    outlines: Sequence[LayerSpec] = (),
    dead: Collection[str] = (),
) -> Check:
    """A stage that trains must run backward and have a gradient that is not zero.

    Where it had one and later has none, or the attempt goes on from a checkpoint, or its layers
    are `dead` in the self-check's twin as well, the training itself may have died: all units of the
    readout far below zero. That is no wrong measurement. The checks of what crosses a cut and of
    what backwards give, and the self-checks, which hold gradients against a twin, accuse a run
    whose gradient should be there.
    """
    trained = [each for each in observations if each.trained_parameters]
    learning = {layer.name for layer in outlines if layer.parameters != 0}
    never = [
        each.rank
        for each in trained
        if _unreached(each) or (_zero_throughout(each) and learning & set(each.layers) - set(dead))
    ]
    norms = {str(each.rank): each.gradient_norms.median for each in observations}
    if never:
        return Check(
            "gradients",
            "invalid",
            f"ranks {never} have parameters but no gradient: backward did not reach them",
            norms,
        )
    without: dict[str, list[int]] = {}
    for each in trained:
        if each.gradient_norms.without:
            without.setdefault(_when(each.gradient_norms), []).append(each.rank)
    if without:
        told = ", ".join(f"{when} on ranks {ranks}" for when, ranks in without.items())
        detail = (
            f"no gradient {told}: training died there, as where all units behind are far below "
            "zero, unless another check finds backward wrong"
        )
        return Check("gradients", "suspect", detail, norms)
    return Check("gradients", "ok", "every stage with parameters has a gradient", norms)


def _unreached(each: RankObservations) -> bool:
    """Whether a rank's backward cannot have reached it, or gave what is no number."""
    norms = each.gradient_norms
    if norms.median is None or not math.isfinite(norms.median):
        return True
    return bool(each.step_s) and each.backward_s <= 0.0


def _zero_throughout(each: RankObservations) -> bool:
    norms = each.gradient_norms
    return norms.without == norms.steps and norms.first_step == 0


def _when(norms: GradientNorms) -> str:
    if norms.none_from is not None:
        return f"from step {norms.none_from} on"
    return f"in {norms.without} of {norms.steps} steps"


def loss(observations: Sequence[RankObservations]) -> Check:
    wrong = max(each.differing_losses for each in observations)
    if wrong:
        return Check(
            "loss",
            "invalid",
            f"in {wrong} steps the loss that was differentiated is not the mean over labelled "
            "samples that is reported: summed micro-batches, or a mean of masked means",
            {"steps": wrong},
        )
    return Check("loss", "ok", "the loss reported is the one that was differentiated", {})


def replicas(observations: Sequence[RankObservations], layout: Layout) -> Check:
    wrong = max(each.unequal_gradients for each in observations)
    if wrong:
        return Check(
            "replicas",
            "invalid",
            f"gradient norms differed between replicas in {wrong} steps and stages",
            {"unequal": wrong},
        )
    return Check("replicas", "ok", f"one gradient on {layout.replicas} replicas", {})


def reductions(observations: Sequence[RankObservations], layout: Layout) -> Check:
    """Each bucket of gradients once a step, however many micro-batches add to them."""
    trained = [each for each in observations if each.trained_parameters]
    shared = int(layout.replicas > 1)
    for each in trained:
        wanted = shared * each.reductions_planned
        if each.reductions != wanted * each.train_steps:
            return Check(
                "all-reduce",
                "suspect",
                f"rank {each.rank} reduced {each.reductions} times in {each.train_steps} steps, "
                f"{wanted} a step expected",
                {},
            )
    counts = sorted({shared * each.reductions_planned for each in trained} or {0})
    return Check("all-reduce", "ok", f"{' or '.join(map(str, counts))} a step", {})
