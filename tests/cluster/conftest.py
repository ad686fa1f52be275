"""One real Slurm for all tests that ask for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import slurm
from tests.cluster.slurm import Cluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A running cluster of n1..n4 with two CPUs each; see config.py for its partitions.

    Where none can start the test is skipped, except in CI or with GNNHPC_REQUIRE_CLUSTER=1.
    """
    if (reason := slurm.obstacle()) is not None:
        if os.environ.get("CI") == "true" or os.environ.get("GNNHPC_REQUIRE_CLUSTER") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    root = Path(tempfile.mkdtemp(prefix=slurm.PREFIX))
    running = slurm.start(root, owner=os.getpid())
    yield running
    slurm.stop(root)
    shutil.rmtree(root)
