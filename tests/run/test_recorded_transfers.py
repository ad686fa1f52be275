"""Runs through shared memory and by gloo: the same to the bit, and records say which it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gnnhpc.experiment.experiment import Experiment
from tests.tools.cells import Ran, RunOnce, gat, manifest_of, run, sampled, vig

pytestmark = pytest.mark.distributed
BY_GLOO = {"GNNHPC_SHARED_MEMORY": "0"}
SHARED = "shared memory"
CELLS = [
    pytest.param(vig(layout="pp2", schedule="1f1b"), SHARED, id="vig pp2"),
    pytest.param(gat(layout="dp2-pp2", microbatches=2), SHARED, id="gat dp2-pp2"),
    pytest.param(sampled(layout="pp2"), "gloo", id="sage pp2, of uneven rows"),
    pytest.param(vig(layout="pp2", engine="pipelining"), "gloo", id="vig pp2 of torch"),
]


def reported(ran: Ran) -> list[str | None]:
    """By each rank, in its header and in the result."""
    assert ran.statuses == [0] * len(ran.statuses), ran.err
    assert ran.result.valid, (ran.result.failure, ran.result.audit)
    found = [rank["transfers"] for rank in ran.result.provenance["ranks"]]
    headers = [ran.lines(rank, "header") for rank in range(len(found))]
    assert [header["transfers"] for (header,) in headers] == found
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "way"), CELLS)
def test_the_same_bits_by_every_way(tmp_path: Path, experiment: Experiment, way: str) -> None:
    size = experiment.layout.world_size
    (cell,) = manifest_of(tmp_path, experiment)
    usual, by_gloo = (run(tmp_path, cell, env=env) for env in ({}, BY_GLOO))
    assert reported(usual) == [way] * size
    assert reported(by_gloo) == ["gloo"] * size
    for phase in ("train", "test"):
        assert usual.losses(phase) == by_gloo.losses(phase)
    assert len(usual.losses()) == experiment.train_steps


def on_two_nodes() -> None:
    """As an agent of torchrun on each would say; ranks 0 and 1 are on the first."""
    os.environ["GROUP_RANK"] = str(int(os.environ["RANK"]) // 2)


@pytest.mark.slow
def test_between_nodes_the_network_is_used(tmp_path: Path) -> None:
    (cell,) = manifest_of(tmp_path, vig(layout="pp4"))
    both = "shared memory and gloo"
    assert reported(run(tmp_path, cell, plant=on_two_nodes)) == [SHARED, both, both, SHARED]


def test_none_is_reported_without_other_stages(run_once: RunOnce) -> None:
    assert reported(run_once(gat(layout="dp2", microbatches=2))) == [None, None]
