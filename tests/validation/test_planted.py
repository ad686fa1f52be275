"""A wrong that is planted into a rank makes the verdict invalid, with a cause that names it."""

from __future__ import annotations

from typing import Any

import pytest

from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.cells import GAT, LINKED, SAMPLED, VIG
from tests.validation import plants
from tests.validation.parity import Plant, checked

pytestmark = pytest.mark.distributed

PP2, DP2, HALO = {"layout": "pp2"}, {"layout": "dp2"}, {"chunks": "halo"}
CASES: list[tuple[Plant, dict[str, Any], str]] = [
    (plants.loss_twice_as_large, VIG, "loss: step 0: the loss is"),
    (plants.mean_of_microbatch_means, GAT, "the mean of the micro-batches' means"),
    (
        plants.gradients_summed_over_replicas,
        VIG | DP2,
        "exactly 2 times the expected: a sum over replicas",
    ),
    (plants.gradients_not_reduced_on_one_stage, VIG | {"layout": "dp2-pp2"}, "gradients: step 0"),
    (
        plants.microbatch_backward_twice,
        VIG,
        "the gradient of micro-batch 1 of replica 0 counts twice",
    ),
    (
        plants.microbatch_left_out,
        GAT | HALO,
        "the gradient of micro-batch 1 of replica 0 is missing",
    ),
    (plants.stale_activation, VIG | PP2, "train step 0, micro-batch 1 of replica 0"),
    (plants.single_precision_transfers, VIG | PP2, "outputs: "),
    (plants.single_precision_gradients_sent, VIG | PP2, "gradients: step 0, replica 0: the grad"),
    (plants.backward_stops_at_the_cut, GAT | PP2, "all gradients of stage 0 are zero"),
    (plants.halo_one_hop_short, GAT | HALO, "outputs: layer0.attention in train step 0"),
    (
        plants.edges_lost,
        GAT | {"chunks": "contiguous"},
        "outputs: layer0.attention in train step 0",
    ),
    (plants.labels_rolled, VIG | PP2, "train targets are not those of its inputs"),
    (plants.replicas_share_samples, VIG | DP2, "inputs: train step 0, micro-batch 0 of replica 1"),
    (plants.never_shuffled_again, SAMPLED, "inputs: train step 0"),
    (plants.evaluation_in_training_mode, GAT, "the layer is in training mode"),
    (
        plants.optimizer_step_skipped_on_one_stage,
        VIG | PP2,
        "moves 0 times as far in step 0 as adam's rule",
    ),
    (plants.running_variance_biased, VIG | {"batchnorm": "deferred"}, "running_var on replica 0"),
    (
        plants.statistics_of_replicas_not_averaged,
        VIG | DP2,
        "statistics in the evaluation: block0",
    ),
    (plants.dropout_mask_of_the_first_step, GAT, "dropout in train step 1"),
    (plants.seeds_of_other_layers, GAT, "initial values: layer0.attention"),
    (plants.accuracy_over_all_rows, VIG, ": accuracy is reported as"),
    (plants.outputs_of_another_microbatch, VIG | PP2, "returned outputs: test step 0"),
    (plants.predicted_links_kept, LINKED, "layer0.convolution in train step 0"),
    (plants.evaluation_moves_parameters, VIG | PP2, "outputs: "),
]
NEEDS_SAMPLER = (plants.never_shuffled_again, plants.predicted_links_kept)


@pytest.mark.quick(
    "loss_twice_as_large",
    "microbatch_left_out",
    "stale_activation",
    "halo_one_hop_short",
    "evaluation_in_training_mode",
    "optimizer_step_skipped_on_one_stage",
)
@pytest.mark.parametrize(
    ("plant", "cell", "cause"), CASES, ids=[plant.__name__ for plant, _, _ in CASES]
)
def test_a_planted_wrong_is_named(plant: Plant, cell: dict[str, Any], cause: str) -> None:
    if plant in NEEDS_SAMPLER and not sample.is_here():
        pytest.skip("needs a C++ compiler")
    verdict = checked(cell, plant)
    assert verdict.verdict == "invalid", verdict.detail
    assert cause in verdict.detail


def test_a_wrong_learning_rate_is_named_where_the_run_has_it() -> None:
    """The optimizer's settings come from the run's own optimizer."""
    verdict = checked(VIG | PP2, plants.learning_rate_of_one_stage)
    assert verdict.verdict == "invalid"
    assert "moves 2 times as far" in verdict.detail
