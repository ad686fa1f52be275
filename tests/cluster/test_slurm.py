"""The harness itself: a cluster that starts, binds ranks, and says what it lacks."""

from __future__ import annotations

import pytest

from tests.cluster import config
from tests.cluster.slurm import Cluster


@pytest.mark.cluster
def test_a_step_runs_on_four_nodes_and_is_bound(cluster: Cluster) -> None:
    names = cluster.run("srun", "-N4", "printenv", "SLURMD_NODENAME").stdout.split()
    assert sorted(names) == ["n1", "n2", "n3", "n4"]
    shown = cluster.run("srun", "-N1", "-n2", "--cpu-bind=cores", "sh", "-c", "taskset -cp $$")
    lists = {line.rpartition(" ")[2] for line in shown.stdout.splitlines()}
    assert len(lists) == (2 if config.can_bind() else 1)
