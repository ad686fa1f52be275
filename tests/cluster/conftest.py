"""One real Slurm for a session, with all sweeps submitted before the first test reads one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster import network, slurm
from tests.cluster.runs import User
from tests.cluster.slurm import Cluster
from tests.cluster.sweeps import Sweeps

REQUIRED = os.environ.get("CI") == "true" or os.environ.get("GNNHPC_REQUIRE_CLUSTER") == "1"


class Refused(pytest.skip.Exception):
    """The kernel does not allow what a test needs, and nothing that one can install helps."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a cluster is required a skipped cluster test has failed, unless the kernel refused."""
    report = yield
    refused = call.excinfo is not None and isinstance(call.excinfo.value, Refused)
    if REQUIRED and report.skipped and not refused and item.get_closest_marker("cluster"):
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
    with running() as cluster:
        yield cluster


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


@pytest.fixture(scope="module")
def slow_network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """A cluster whose nodes reach each other at 200 Mbit/s by eth0, and unlimited by eth1."""
    if (reason := slurm.obstacle() or network.obstacle()) is not None:
        pytest.skip(reason)
    if (reason := network.refusal()) is not None:
        raise Refused(reason)
    with running(networked=True, bandwidth="200mbit") as cluster:
        yield User(cluster, tmp_path_factory.mktemp("network"))


@contextlib.contextmanager
def running(*, networked: bool = False, bandwidth: str | None = None) -> Iterator[Cluster]:
    """A cluster that is gone afterwards."""
    root = Path(tempfile.mkdtemp(prefix=slurm.PREFIX))
    try:
        yield slurm.start(root, owner=os.getpid(), networked=networked, bandwidth=bandwidth)
    finally:
        slurm.stop(root)
        shutil.rmtree(root)
