"""The last evaluation, computed again in one process from what training left behind."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gnnhpc.check.final_check import IMAGES, NODES, _images, _spread
from gnnhpc.check.twin.closure import closure_of
from gnnhpc.check.twin.pieces import graph_piece
from gnnhpc.data.graphs import load_graph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.context import Context
from gnnhpc.records.schema import Check
from tests.check.test_twin import plain
from tests.defects.patching import around
from tests.tools.cells import Ran, gat, graphs, manifest_of, run, vig
from tests.tools.forked import Plant

CELLS = {
    "vig pp2, deferred": vig(layout="pp2", batchnorm="deferred"),
    "vig dp2": vig(layout="dp2"),
    "gat dp2-pp2 with halo": gat(layout="dp2-pp2", microbatches=2, chunks="halo"),
    "gat in pieces": gat(layout="pp2"),
    "gat, its gradients from PyG": gat(model={"name": "gat", "implementation": "reference"}),
}


@pytest.mark.quick("gat", "sage")
@pytest.mark.parametrize("model", ["gat", "gcn", "sage", "gcnii"])
@given(
    numbers=st.lists(st.integers(0, 149), min_size=1, max_size=5, unique=True),
    halo=st.booleans(),
    training=st.booleans(),
)
def test_the_closure_of_nodes_has_their_outputs(
    model: str, numbers: list[int], halo: bool, training: bool
) -> None:
    """GCN and GCNII weigh by the degrees of nodes whose edges are not in the closure; in training
    what is dropped is told by numbers in the whole graph."""
    chunks = "halo" if halo else "contiguous"
    # Sparse, so that the closure is not the whole graph.
    data = {"name": "synthetic-citation", "nodes": 150, "edges": 200, "features": 32}
    layers = {"layers": 2} if model == "gcnii" else {}
    experiment = gat(dtype="float64", chunks=chunks, model={"name": model, **layers}, data=data)
    twin, whole = plain(experiment), graph_piece(experiment, load_graph(experiment.data, None))
    nodes = torch.tensor(sorted(numbers))
    part = closure_of(whole, nodes, 2)
    assert part.ids is not None
    parameters = {
        name: value.double().requires_grad_(training) for name, value in twin.initial().items()
    }
    expected, found = (
        twin.forward(piece, parameters, 0, training=training)[-1] for piece in (whole, part)
    )
    assert isinstance(expected, Tensor)
    assert isinstance(found, Tensor)
    rows = torch.searchsorted(part.ids, nodes)
    torch.testing.assert_close(found[rows], expected[nodes], rtol=1e-12, atol=1e-14)


def check_of(found: Ran, name: str = "final-check") -> Check:
    (check,) = [each for each in found.result.audit if each.name == name]
    return check


def ran(folder: Path, experiment: Experiment, plant: Any = None) -> Ran:
    (cell,) = manifest_of(folder, experiment)
    return run(folder, cell, plant=plant)


@pytest.mark.quick("vig dp2", "gat dp2-pp2 with halo")
@pytest.mark.distributed
@pytest.mark.parametrize("name", CELLS)
def test_a_healthy_run_ends_with_what_it_evaluated(name: str, tmp_path: Path) -> None:
    found = ran(tmp_path, CELLS[name])
    check = check_of(found)
    assert check.verdict == "ok", check
    assert check.detail.startswith("the last evaluation's outputs of ")
    if name.startswith("gat"):
        check = check_of(found, "training outputs")
        assert check.verdict == "ok", check
        assert check.detail.startswith("a training step's outputs of ")
    else:
        # Its BatchNorms let each image depend on all.
        assert "training outputs" not in [each.name for each in found.result.audit]


@pytest.mark.slow
@pytest.mark.distributed
def test_without_an_evaluation_there_is_nothing_to_compute_again(tmp_path: Path) -> None:
    found = ran(tmp_path, vig(test_steps=0, test_every=None))
    assert found.result.valid
    assert "final-check" not in [check.name for check in found.result.audit]


@pytest.mark.slow
@pytest.mark.distributed
def test_outputs_of_small_graphs_in_training_are_computed_again(tmp_path: Path) -> None:
    experiment = graphs(microbatches=2)
    check = check_of(ran(tmp_path / "right", experiment), "training outputs")
    assert check.verdict == "ok", check
    wrong = ran(tmp_path / "wrong", experiment, functools.partial(wrong_in_training, 1))
    check = check_of(wrong, "training outputs")
    assert check.verdict == "invalid"
    assert " graphs, computed again" in check.detail


@given(st.integers(1, 200), st.integers(2, 40), st.integers(0, 5))
def test_rows_are_drawn_of_each_piece(rows: int, pieces: int, seed: int) -> None:
    places = _spread(rows, pieces, random.Random(seed))
    assert places[0] == 0
    assert places[-1] == rows - 1
    assert (np.diff(places) > 0).all()
    # No piece is left out, so no gap is as long as two of them.
    assert np.diff(places, append=rows).max() <= 2 * -(-rows // min(pieces, rows))


def wrong_from(evaluation: int, microbatch: int = 0) -> None:
    """A stage's evaluation goes a little wrong once the self-check is long over, from one of its
    micro-batches on."""
    from gnnhpc.engines.stage import Stage

    true = Stage.forward
    calls: list[int] = []

    def forward(stage: Stage, x: Any, context: Context) -> Tensor:
        output = true(stage, x, context)
        if not stage.training and context.microbatch >= microbatch:
            calls.append(1)
            if len(calls) > evaluation:
                return output * 1.001
        return output

    Stage.forward = forward  # type: ignore[method-assign]


def wrong_in_training(first: int) -> None:
    """From that micro-batch on, and in steps after the last alone: what goes wrong before, a
    self-check of so few nodes sees."""
    from gnnhpc.check.slope.passes import Pass, Passes

    true = Passes.take

    def take(passes: Passes) -> Pass:
        found = true(passes)
        wrong = [each * (1.001 if m >= first else 1.0) for m, each in enumerate(found.outputs)]
        return dataclasses.replace(found, outputs=wrong)

    Passes.take = take  # type: ignore[method-assign]


@pytest.mark.distributed
@pytest.mark.parametrize("first", [0, 3])
def test_a_training_forward_that_goes_wrong_is_found(first: int, tmp_path: Path) -> None:
    """In all micro-batches, or in the last alone."""
    experiment = gat(layout="pp2", chunks="halo")
    found = ran(tmp_path, experiment, functools.partial(wrong_in_training, first))
    assert not found.result.valid
    check = check_of(found, "training outputs")
    assert check.verdict == "invalid"
    (count,) = re.findall(r"a training step's outputs of (\d+) nodes, computed", check.detail)
    assert int(count) >= NODES
    assert check.values["worst"] > 1e-4


def garbage_in_training_rows(first_call: int) -> None:
    """Of three micro-batches of four: wrong rows, and no numbers in those that no metric reads."""
    from gnnhpc.engines.stage import Stage

    calls = itertools.count()

    def forward(true: Any, stage: Stage, x: Any, context: Context) -> Tensor:
        output: Tensor = true(stage, x, context)
        if not stage.training and context.microbatch < 3 and next(calls) >= first_call:
            own = context.chunk.nodes[: context.chunk.own]
            output = output * 0.5 + output.roll(1, 1)
            trained = load_graph(gat().data, None).masks["train"][own]
            output[trained.nonzero().flatten()] = math.nan
        return output

    around(Stage, "forward", forward)


@pytest.mark.distributed
def test_rows_that_are_no_numbers_hide_no_wrong_ones(tmp_path: Path) -> None:
    found = ran(tmp_path, gat(layout="seq"), functools.partial(garbage_in_training_rows, 18))
    assert check_of(found).verdict == "invalid"


@pytest.mark.slow
@pytest.mark.distributed
def test_a_run_that_diverges_with_its_last_step_is_not_accused(tmp_path: Path) -> None:
    rate = {"name": "sgd", "lr": 1e30}
    found = ran(tmp_path, gat(train_steps=1, test_steps=0, test_every=None, optimizer=rate))
    check = check_of(found, "training outputs")
    assert check.verdict == "unknown"
    assert "diverges" in check.detail


@pytest.mark.quick("the last chunk of gat")
@pytest.mark.distributed
@pytest.mark.parametrize(
    ("experiment", "plant"),
    [
        (vig(layout="pp2"), functools.partial(wrong_from, 12)),
        (gat(layout="pp2"), functools.partial(wrong_from, 3, microbatch=3)),
    ],
    ids=["all of vig", "the last chunk of gat"],
)
def test_an_evaluation_that_goes_wrong_later_is_found(
    experiment: Experiment, plant: Plant, tmp_path: Path
) -> None:
    found = ran(tmp_path, experiment, plant)
    assert not found.result.valid
    check = check_of(found)
    assert check.verdict == "invalid"
    assert "computed again in one process from the final parameters, differ by" in check.detail
    assert check.values["worst"] > 1e-4


@given(st.integers(0, 99), st.integers(1, 40), st.integers(1, 40))
def test_images_of_all_of_few_micro_batches_are_computed_again(
    seed: int, microbatches: int, size: int
) -> None:
    places = _images(random.Random(seed), microbatches, size)
    assert places[0][0] == 0
    assert places[microbatches - 1][-1] == size - 1
    assert all(
        np.all(np.diff(rows) > 0) and 0 <= rows[0] <= rows[-1] < size for rows in places.values()
    )
    count = sum(map(len, places.values()))
    assert min(IMAGES // 2, microbatches * size) <= count <= IMAGES + 2
    assert microbatches > IMAGES or len(places) == microbatches
