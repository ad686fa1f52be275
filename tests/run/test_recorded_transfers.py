"""Records say by which way tensors went from stage to stage."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tools.cells import Ran, RunOnce, manifest_of, run, sampled, vig

pytestmark = pytest.mark.distributed


def reported(ran: Ran) -> list[str | None]:
    """By each rank, in its header and in the result."""
    assert ran.statuses == [0] * len(ran.statuses), ran.err
    assert ran.result.valid, (ran.result.failure, ran.result.audit)
    found = [rank["transfers"] for rank in ran.result.provenance["ranks"]]
    headers = [ran.lines(rank, "header") for rank in range(len(found))]
    assert [header["transfers"] for (header,) in headers] == found
    return found


def on_two_nodes() -> None:
    """As an agent of torchrun on each would say; ranks 0 and 1 are on the first."""
    os.environ["GROUP_RANK"] = str(int(os.environ["RANK"]) // 2)


@pytest.mark.slow
def test_between_nodes_and_for_uneven_rows_the_network_is_used(
    tmp_path: Path, run_once: RunOnce
) -> None:
    (cell,) = manifest_of(tmp_path, vig(layout="pp4"))
    shared, both = "shared memory", "shared memory and gloo"
    assert reported(run(tmp_path, cell, plant=on_two_nodes)) == [shared, both, both, shared]
    assert reported(run_once(sampled(layout="pp2"))) == ["gloo", "gloo"]
