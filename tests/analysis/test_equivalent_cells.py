"""Cells that must learn the same stay within an envelope around their sequential cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.load.equivalent_cells import (
    LOSS,
    NORM,
    Trajectory,
    compare_equivalent_cells,
    compared_steps,
    divergence,
    equivalence_key,
)
from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import gat, sampled, vig

STEPS = 40


def trajectory(*, loss: float = 1.0, norm: float = 1.0, at: int = 0) -> Trajectory:
    """A decreasing loss and norm, which are scaled from step `at` on."""
    steps = np.arange(STEPS)
    scale = np.where(steps < at, 1.0, np.array([[loss], [norm]]))
    series = scale * 2.0 * np.exp(-0.02 * steps)
    return Trajectory(series[0], series[1])


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (trajectory(norm=1.005), "gradient norm of step 0"),
        (trajectory(loss=1.001), "training loss of step 0"),
        (trajectory(loss=1.01, at=1), "training loss of step 1"),
        (trajectory(loss=1.5, at=9), "training loss of step 9"),
        (trajectory(norm=1.02, at=30), "gradient norm of step 30"),
    ],
)
def test_a_divergence_names_the_step_and_a_cause(other: Trajectory, words: str) -> None:
    cause = divergence(trajectory(), other)
    assert cause.startswith(words)
    assert ";" in cause


def test_a_difference_that_grows_step_by_step_is_rounding() -> None:
    growing = 1.0 + np.minimum(1e-7 * 1.8 ** np.arange(STEPS), 0.5)
    one = trajectory()
    assert divergence(one, Trajectory(one.losses * growing, one.norms * growing)) == ""
    assert compared_steps(one, Trajectory(one.losses * growing, one.norms)) < STEPS


def test_float64_allows_less() -> None:
    one, other = trajectory(), trajectory(loss=1.0 + 1e-8)
    assert divergence(one, other) == ""
    exact = Trajectory(one.losses, one.norms, "float64")
    assert divergence(exact, other).startswith("training loss of step 0")


def test_what_records_round_is_no_difference() -> None:
    """Files keep nine digits after the point, which are few of a small norm."""
    losses = np.ones(STEPS)
    one = Trajectory(losses, np.full(STEPS, 0.012345678), "float64")
    assert divergence(one, Trajectory(losses, one.norms + 1e-9)) == ""
    assert divergence(one, Trajectory(losses, one.norms + 1e-8)).startswith("gradient norm")


@given(st.integers(0, 8), st.floats(0.0, 0.9), st.booleans())
def test_less_than_the_envelope_is_allowed_and_more_is_found(
    step: int, share: float, of_norm: bool
) -> None:
    envelope = NORM if of_norm else LOSS
    allowed = float(envelope.allowed(np.zeros(STEPS))[step])
    for factor, stays in ((share, True), (1.5, False)):
        # The difference is relative to the larger value.
        scale = 1.0 / (1.0 - min(0.99, factor * allowed))
        series = np.ones((2, STEPS))
        series[int(of_norm), step] = scale
        assert (divergence(Trajectory(*np.ones((2, STEPS))), Trajectory(*series)) == "") is stays


REFERENCE = {**vig().model.model_dump(), "implementation": "pyg"}
OTHER_DATA = {"name": "synthetic-cifar10", "image_size": 8, "train": 65, "test": 32}
LOSSY = gat(chunks="contiguous")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (vig(), vig(layout="pp2", schedule="1f1b", engine="pipelining", microbatches=4), True),
        (vig(), vig(layout="dp2", batch_size=4, microbatches=2), True),
        (vig(), vig(repeat=3, spans=True, test_every=2, train_steps=4, model=REFERENCE), True),
        (gat(microbatches=1), gat(chunks="halo", layout="pp2"), True),
        (gat(microbatches=1), gat(chunks="halo", layout="dp2"), True),
        (sampled(), sampled(layout="dp2", batch_size=12), True),
        (LOSSY, gat(chunks="contiguous", layout="pp2"), True),
        (LOSSY, gat(chunks="contiguous", microbatches=2), False),
        (LOSSY, gat(microbatches=1), False),
        (vig(), vig(seed=1), False),
        (vig(), vig(dtype="float64"), False),
        (vig(), vig(batch_size=16), False),
        # ViG normalises by micro-batch.
        (vig(), vig(microbatches=2), False),
        (vig(), vig(optimizer={"lr": 0.5}), False),
        (vig(), vig(data=OTHER_DATA), False),
    ],
)
def test_what_is_learnt_decides_the_key_and_not_who_computes(
    one: Experiment, other: Experiment, equal: bool
) -> None:
    assert (equivalence_key(one) == equivalence_key(other)) is equal


CUSTOM = {"model": {"name": "net:Net"}, "chunks": "halo"}


@pytest.mark.parametrize(
    ("changes", "suspect"),
    [({"microbatches": 2}, True), ({"layout": "pp2", "microbatches": 1}, False)],
)
def test_a_custom_model_in_several_chunks_is_compared_with_the_whole_graph(
    changes: dict[str, Any], suspect: bool
) -> None:
    """BatchNorm may differ between chunks, so that their divergence is suspect, not invalid."""
    whole, other = gat(**CUSTOM, microbatches=1), gat(**CUSTOM, **changes)
    learnt = {"whole": trajectory(), "other": trajectory(loss=1.1)}
    found = compare_equivalent_cells({"whole": ("run", whole), "other": ("run", other)}, learnt)
    assert not found["whole"].cause
    assert found["other"].cause.startswith("training loss of step 0")
    assert found["other"].suspect is suspect


def test_cells_are_compared_with_their_runs_plainest_sequential_cell() -> None:
    plans = {
        "repeat": ("run", vig(repeat=1)),
        "seq": ("run", vig()),
        "pp2": ("run", vig(layout="pp2")),
        "alone": ("other run", vig(layout="pp2")),
    }
    found = compare_equivalent_cells(plans, dict.fromkeys(plans, trajectory()))
    steps = {name: (one.steps, one.alone) for name, one in found.items()}
    assert steps == {
        "repeat": (None, False),
        "seq": (None, False),
        "pp2": (STEPS, False),
        "alone": (None, True),
    }
