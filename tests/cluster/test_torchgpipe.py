"""torchgpipe on the real Slurm: all stages of a replica are one task."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.runs import TINY_GAT, User, losses
from tests.cluster.slurm import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def test_a_pipeline_of_four_stages_is_one_task_and_two_replicas_are_two(
    cluster: Cluster, tmp_path: Path
) -> None:
    gpipe = {
        "engine": "torchgpipe",
        "activation_checkpointing": "always",
        "layouts": ["pp4", "dp2-pp2"],
    }
    grid = TINY_GAT | gpipe | {"microbatches": [2]}
    run = User(cluster, tmp_path).submit([grid], name="gpipe")
    run.results()
    run.wait_until_idle()
    tasks = {}
    for cell in run.cells:
        result = run.result(cell)
        assert (result.status, result.failure) == ("done", None), cell.id
        tasks[cell.array] = len(result.provenance["hosts"])
        assert sorted(losses(run.attempt(cell), tasks[cell.array])) == [0, 1, 2]
    assert tasks == {"gat-pp4-torchgpipe": 1, "gat-dp2-pp2-torchgpipe": 2}
