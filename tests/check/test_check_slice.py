"""The slice of an experiment that a self-check works on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.check.check_slice import FLOPS, check_slice, last_slices
from gnnhpc.experiment.cli_experiment import build_experiment
from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import gat, vig


def large_vig(microbatches: int, layout: str = "pp2") -> Experiment:
    raw = {"model": "vig", "data": "cifar10", "batch_size": 100, "layout": layout}
    return build_experiment(raw | {"microbatches": microbatches}, "test")


def test_a_small_experiment_is_its_own_slice_but_for_its_rows() -> None:
    part = check_slice(vig(layout="pp2"))
    assert part.experiment.microbatches == 4
    assert part.experiment.batch_size == 8
    assert part.side is None
    assert part.left_out == "2 of 2 images a micro-batch"
    assert (part.experiment.train_steps, part.experiment.test_steps) == (2, 1)
    assert part.experiment.test_every is None


def test_no_evaluation_where_the_run_has_none() -> None:
    assert check_slice(vig(test_steps=0)).experiment.test_steps == 0


@pytest.mark.parametrize("microbatches", [1, 5, 10, 20])
def test_all_micro_batches_of_the_study_are_kept(microbatches: int) -> None:
    part = check_slice(large_vig(microbatches))
    assert part.experiment.microbatches == microbatches
    assert part.side in (None, 16, 8)
    assert part.outlines[0].inputs[0] == (part.side or 32) ** 2


def test_where_nothing_is_small_enough_the_pipeline_is_still_filled_and_emptied() -> None:
    part = check_slice(large_vig(100, "pp4"), flops=1.0)
    assert part.experiment.microbatches == 5
    assert (
        part.left_out == "1 of 1 images a micro-batch, 5 of 100 micro-batches, 8 x 8 pixels of each"
    )


def test_after_the_last_step_come_whole_micro_batches() -> None:
    (part,) = last_slices(vig(layout="pp2", batch_size=32))
    assert part.left_out == "8 of 8 images a micro-batch"
    assert (part.first, part.steps, part.experiment.train_steps) == (6, 1, 7)
    ten = "10 of 10 images a micro-batch, 3 of 10 micro-batches, 8 x 8 pixels of each"
    cropped, whole = last_slices(large_vig(10))
    assert cropped.left_out == ten
    assert whole.left_out == "2 of 10 images of 1 of 10 micro-batches"
    assert (whole.side, whole.experiment.microbatches, whole.experiment.batch_size) == (None, 1, 2)
    assert whole.outlines[0].inputs[0] == 32 * 32
    five = "5 of 100 images a micro-batch, 16 x 16 pixels of each"
    assert last_slices(large_vig(1, "seq"))[0].left_out == five


def test_a_graph_goes_on_after_its_last_step() -> None:
    (part,) = last_slices(gat())
    assert (part.first, part.steps, part.nodes) == (6, 1, None)


@given(st.integers(1, 4), st.integers(1, 4), st.floats(1e3, 1e12))
def test_a_slice_keeps_what_is_checked(replicas: int, microbatches: int, flops: float) -> None:
    layout = f"dp{replicas}-pp2"
    whole = vig(layout=layout, microbatches=microbatches, batch_size=microbatches * 2)
    part = check_slice(whole, flops)
    assert part.experiment.layout == whole.layout
    assert part.experiment.schedule == whole.schedule
    assert part.experiment.engine == whole.engine
    assert part.experiment.model == whole.model
    assert [each.name for each in part.outlines] == [
        each.name for each in check_slice(whole, 1e18).outlines
    ]


def test_a_graph_is_checked_whole_where_that_is_cheap() -> None:
    part = check_slice(gat())
    assert part.nodes is None
    assert part.left_out == ""
    pubmed = build_experiment({"model": "gat", "data": "pubmed", "microbatches": 4}, "test")
    assert check_slice(pubmed).nodes is None


def test_of_a_large_graph_some_nodes_are_kept() -> None:
    data = {"name": "synthetic-citation", "nodes": 10**6, "edges": 10**7, "features": 100}
    large = build_experiment({"model": "gat", "data": data, "microbatches": 4}, "test")
    part = check_slice(large)
    assert part.nodes is not None
    assert 200 <= part.nodes < 10**6
    assert part.left_out == f"{part.nodes} of 1000000 nodes"
    fewer = check_slice(large, FLOPS / 10).nodes
    assert fewer is not None
    assert fewer < part.nodes
