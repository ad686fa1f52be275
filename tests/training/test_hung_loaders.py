"""Runs whose library's loader has a worker that ends."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.kernels import sample_neighbors as sample
from tests.tools.cells import Ran, manifest_of, run, sampled
from tests.tools.dgl import needs_dgl
from tests.tools.forked import Plant

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(not sample.is_here(), reason="needs a C++ compiler, as g++"),
]


def ran(root: Path, plant: Plant) -> Ran:
    needs_dgl()
    sampling = {"fanouts": [4, 3], "sampler": "dgl", "workers": 2}
    (cell,) = manifest_of(root, sampled(sampling=sampling, batch_size=12))
    return run(root, cell, plant=plant)


def test_a_signal_to_all_processes_lets_the_rank_save(tmp_path: Path) -> None:
    """As Slurm ends a job where it knows processes by their parents, or a service manager does."""
    found = ran(tmp_path, end_all_processes_in_the_third_step)
    assert (found.statuses, found.result.status) == ([3], "interrupted"), found.err
    assert found.result.train_steps == 3


def end_all_processes_in_the_third_step() -> None:
    from gnnhpc.training.loop import TrainingLoop

    true = TrainingLoop._train

    def ended(self: TrainingLoop, batch: Any) -> Any:
        if self.position.step == 2:
            workers = multiprocessing.active_children()
            assert len(workers) == 2
            # By another process: its workers end when the rank itself stops them.
            pids = [str(pid) for pid in (os.getpid(), *(worker.pid for worker in workers))]
            subprocess.run(["kill", "-TERM", *pids], check=True)
            time.sleep(0.1)
        return true(self, batch)

    TrainingLoop._train = ended  # type: ignore[method-assign]
