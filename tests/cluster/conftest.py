"""One real Slurm for all tests that ask for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster import slurm
from tests.cluster.runs import User, wait_for
from tests.cluster.slurm import Cluster

REQUIRED = os.environ.get("CI") == "true" or os.environ.get("GNNHPC_REQUIRE_CLUSTER") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a cluster is required a skipped cluster test has failed, whatever its reason."""
    report = yield
    if REQUIRED and report.skipped and item.get_closest_marker("cluster"):
        report.outcome = "failed"
        report.longrepr = f"skipped, but CI needs it: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster of n1..n4 with two CPUs each; see config.py for its partitions.

    Where none can start the tests are skipped; in CI, or with GNNHPC_REQUIRE_CLUSTER=1, they fail.
    """
    if (reason := slurm.obstacle()) is not None:
        pytest.skip(reason)
    root = Path(tempfile.mkdtemp(prefix=slurm.PREFIX))
    running = slurm.start(root, owner=os.getpid())
    yield running
    slurm.stop(root)
    shutil.rmtree(root)


@pytest.fixture
def user(cluster: Cluster, tmp_path: Path) -> Iterator[User]:
    """Somebody who submits to the cluster; what they leave in the queue is cancelled."""
    yield User(cluster, tmp_path)
    left = cluster.run("squeue", "-h", "-o", "%A").stdout.split()
    if left:
        cluster.run("scancel", "--full", "--signal=KILL", *set(left), check=False)
        cluster.run("scancel", *set(left), check=False)
        wait_for(lambda: not cluster.run("squeue", "-h").stdout, "cancelled jobs to end")
