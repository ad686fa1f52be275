"""One real Slurm for a session, with all sweeps submitted before the first test reads one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import slurm
from tests.cluster.runs import User
from tests.cluster.slurm import Cluster
from tests.cluster.sweeps import Sweeps

REQUIRED = os.environ.get("CI") == "true" or os.environ.get("GNNHPC_REQUIRE_CLUSTER") == "1"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster of n1..n4 with two CPUs each; see config.py for its partitions.

    Where none can start the tests are skipped; in CI, or with GNNHPC_REQUIRE_CLUSTER=1, they fail.
    """
    if (reason := slurm.obstacle()) is not None:
        (pytest.fail if REQUIRED else pytest.skip)(reason)
    root = Path(tempfile.mkdtemp(prefix=slurm.PREFIX))
    cluster = slurm.start(root, owner=os.getpid())
    yield cluster
    slurm.stop(root)


@pytest.fixture(scope="session")
def sweeps(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Sweeps:
    """All sweeps of `sweeps.py`, submitted and disturbed."""
    return Sweeps(User(cluster, tmp_path_factory.mktemp("sweeps")))


@pytest.fixture
def user(cluster: Cluster, tmp_path: Path) -> Iterator[User]:
    """Somebody who submits to the cluster; what they leave in the queue is cancelled."""
    user = User(cluster, tmp_path)
    yield user
    for run in sorted(user.runs.glob("*/manifest.jsonl")):
        user.jobs("cancel", run.parent, check=False)
