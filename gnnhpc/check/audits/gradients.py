"""What ranks learn from: gradients, the loss they come from, how replicas share them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.core.layout import Layout
from gnnhpc.records.schema import Check


def gradients(observations: Sequence[RankObservations]) -> Check:
    """A stage that trains must run backward and have a gradient that is not zero."""
    without = [
        each.rank
        for each in observations
        if each.trained_parameters
        and (
            not each.median_grad_norm
            or not math.isfinite(each.median_grad_norm)
            or (each.step_s and each.backward_s <= 0.0)
        )
    ]
    norms = {str(each.rank): each.median_grad_norm for each in observations}
    if without:
        return Check(
            "gradients",
            "invalid",
            f"ranks {without} have parameters but no gradient: backward did not reach them",
            norms,
        )
    return Check("gradients", "ok", "every stage with parameters has a gradient", norms)


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
    wanted = 1 if layout.replicas > 1 else 0
    wrong = [
        each.rank
        for each in observations
        if each.trained_parameters and each.reductions != wanted * each.train_steps
    ]
    if wrong:
        each = observations[wrong[0]]
        return Check(
            "all-reduce",
            "suspect",
            f"rank {each.rank} reduced {each.reductions} times in {each.train_steps} steps, "
            f"{wanted} a step expected",
            {},
        )
    return Check("all-reduce", "ok", f"{wanted} a step", {})
