"""The slice of an experiment that an engine parity check works on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnhpc.data.load_graph import load_graph, load_graph_set
from gnnhpc.experiment.command_line_flags import build_experiment
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.validation.steps.parity_slice import (
    labelled_neighborhood,
    parity_slice,
    some_of_each_split,
)
from tests.tools.cells import gat, graphs


def large_vig(microbatches: int, layout: str = "pp2", train_steps: int = 300) -> Experiment:
    raw = {"model": "vig", "data": "cifar10", "batch_size": 100, "layout": layout}
    raw |= {"microbatches": microbatches, "train_steps": train_steps}
    return build_experiment(raw, "test")


@pytest.mark.parametrize("microbatches", [1, 5, 10, 20])
def test_a_run_of_some_hundred_steps_keeps_all_micro_batches(microbatches: int) -> None:
    part = parity_slice(large_vig(microbatches))
    assert part.experiment.microbatches == microbatches
    assert part.layer_specs[0].inputs[0] == (part.side or 32) ** 2


@pytest.mark.parametrize("microbatches", [20, 100])
def test_the_pipeline_is_filled_and_emptied_where_a_run_is_short(microbatches: int) -> None:
    part = parity_slice(large_vig(microbatches, "pp4", train_steps=100))
    assert part.experiment.microbatches == 5


def test_few_of_many_graphs_still_give_a_mini_batch() -> None:
    data = {"name": "synthetic-graphs", "graphs": 500, "nodes": 8}
    part = parity_slice(graphs(layout="dp2", microbatches=3, data=data))
    assert part.graphs is not None
    assert part.experiment.batch_size is not None
    assert part.experiment.batch_size * 2 <= part.graphs


@given(st.integers(20, 140))
def test_a_neighborhood_is_a_graph_with_labels(count: int) -> None:
    graph = load_graph(gat().data, None)
    part = labelled_neighborhood(graph, count)
    assert part.nodes == count
    assert all(bool(mask.any()) for mask in part.masks.values())
    source, target = part.edges
    assert bool(((target * count + source).diff() > 0).all())
    assert part.features.shape == (count, graph.features.shape[1])
    assert int(part.edges.max()) < count


def test_some_graphs_of_each_split_keep_their_edges() -> None:
    whole = load_graph_set(graphs().data, None)
    part = some_of_each_split(whole, 3)
    assert all(int(mask.sum()) == 3 for mask in part.masks.values())
    assert part.nodes == int(part.first[-1])
    assert int(part.edges.max()) < part.nodes
