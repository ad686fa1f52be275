"""Which steps are looked at: few, the same on all ranks, and all of them marked as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.check.watches.choice import AN_EPOCH, FIRST, LEAST_STEPS, drawn
from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import gat, manifest_of, run, vig


@pytest.mark.parametrize("per_epoch", [1, 4, 5, 12, 13, 500])
def test_a_few_steps_are_drawn_of_each_epoch_or_of_some_short_ones(per_epoch: int) -> None:
    together = per_epoch
    while together < LEAST_STEPS:
        together += per_epoch
    for first in range(0, 5 * together, together):
        chosen = [drawn(3, "train", step, per_epoch) for step in range(first, first + together)]
        assert sum(chosen) == AN_EPOCH
    seeds = [[drawn(seed, "train", step, per_epoch) for step in range(200)] for seed in range(5)]
    assert len(set(map(tuple, seeds))) == 5


@pytest.mark.quick("vig")
@pytest.mark.distributed
@pytest.mark.parametrize(
    "experiment",
    [vig(layout="pp2", train_steps=24), gat(layout="dp2", chunks="halo", train_steps=24)],
    ids=["vig", "gat"],
)
def test_records_say_which_steps_were_looked_at(tmp_path: Path, experiment: Experiment) -> None:
    """Most are not, though a graph's epoch is one step."""
    (cell,) = manifest_of(tmp_path, experiment)
    ran = run(tmp_path, cell)
    assert ran.result.valid, ran.result.audit
    first, second = ([r["looked"] for r in ran.steps(rank, "train")] for rank in range(2))
    assert first == second
    assert first[:FIRST] == [True] * FIRST
    assert first[-1]
    assert 1 <= sum(first[FIRST:-1]) <= 2 * AN_EPOCH
