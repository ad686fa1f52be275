"""Whole cells on GPUs: every layout computes what one process on a CPU does, whichever way tensors
travel; ranks of one GPU, ranks shown one each, and a rank that hangs.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.model import Context
from tests.tools.cells import Ran, gat, in_one_process, manifest_of, run, vig

pytestmark = [pytest.mark.gpu, pytest.mark.distributed]
# In double precision another device's order of sums is far from what a wrong gradient does.
SAME = {"dtype": "float64"}
# DETAIL, which other tests use, puts a process group of its own around each of NCCL's.
ENV = {"TORCH_DISTRIBUTED_DEBUG": "INFO"}
SHARED = ENV | {"GNNHPC_SHARE_GPU": "1"}


def visible() -> list[str]:
    reported = os.environ.get("CUDA_VISIBLE_DEVICES")
    return reported.split(",") if reported else [str(n) for n in range(torch.cuda.device_count())]


def show(gpus: list[str], which: str) -> None:
    """What a launcher shows a rank: the first GPU only, or one of its own."""
    rank = int(os.environ["RANK"])
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[0] if which == "first" else gpus[rank]


def shown(which: str) -> Callable[[], None]:
    return functools.partial(show, visible(), which)


def ran(root: Path, experiment: Experiment, **how: Any) -> Ran:
    return run(root, manifest_of(root, experiment)[0], **({"env": ENV} | how))


def assert_as_on_a_cpu(tmp_path: Path, cell: Ran) -> None:
    assert set(cell.statuses) == {0}, cell.err
    wrong = {check.name: check.detail for check in cell.result.audit if check.verdict == "invalid"}
    assert not wrong
    same = in_one_process(cell.cell.experiment, device="cpu", engine="native")
    expected = ran(tmp_path / "cpu", same).losses()
    assert cell.losses() == pytest.approx(expected, rel=1e-9)


def facts_of(cell: Ran, rank: int) -> dict[str, Any]:
    (header,) = cell.lines(rank, "header")
    facts: dict[str, Any] = header["device_facts"]
    return facts


@pytest.mark.parametrize("make", [vig, gat], ids=["vig", "gat"])
def test_one_process(tmp_path: Path, make: Callable[..., Experiment]) -> None:
    cell = ran(tmp_path, make(device="gpu", **SAME))
    assert_as_on_a_cpu(tmp_path, cell)
    assert facts_of(cell, 0)["transfers"] is None
    assert all(step["peak_device_mib"] > 0 for step in cell.steps(0, "train"))


LAYOUTS = [
    vig(layout="pp2", device="gpu", **SAME),
    vig(layout="pp2", schedule="1f1b", balance="profile", device="gpu", **SAME),
    vig(layout="dp2", device="gpu", **SAME),
    vig(layout="dp2-pp2", schedule="1f1b", device="gpu", **SAME),
    gat(layout="pp2", device="gpu", **SAME),
    gat(layout="dp2", microbatches=2, chunks="halo", device="gpu", **SAME),
]
layouts = pytest.mark.parametrize(
    "experiment", LAYOUTS, ids=lambda e: f"{e.model.name} {e.layout} {e.schedule} {e.balance}"
)


@layouts
def test_ranks_that_share_a_gpu_knowingly(tmp_path: Path, experiment: Experiment) -> None:
    cell = ran(tmp_path, experiment, env=SHARED, plant=shown("first"))
    assert_as_on_a_cpu(tmp_path, cell)
    assert "shared_gpu" in cell.result.flags
    assert facts_of(cell, 1)["transfers"] == "gloo through host memory"


@layouts
@pytest.mark.usefixtures("two_gpus")
def test_ranks_with_a_gpu_each(tmp_path: Path, gpus: int, experiment: Experiment) -> None:
    if gpus < experiment.layout.world_size:
        pytest.skip(f"{gpus} GPUs: {experiment.layout} needs {experiment.layout.world_size}")
    cell = ran(tmp_path, experiment)
    assert_as_on_a_cpu(tmp_path, cell)
    assert "shared_gpu" not in cell.result.flags
    assert facts_of(cell, 1)["transfers"] == "nccl"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.usefixtures("two_gpus")
def test_torchs_engine(tmp_path: Path, schedule: str) -> None:
    experiment = vig(layout="pp2", schedule=schedule, engine="pipelining", device="gpu", **SAME)
    assert_as_on_a_cpu(tmp_path, ran(tmp_path, experiment))


@pytest.mark.usefixtures("two_gpus")
def test_ranks_that_are_shown_one_gpu_each(tmp_path: Path) -> None:
    """As with --gpu-bind=per_task:1: both see a device 0, and they are two."""
    cell = ran(tmp_path, vig(layout="pp2", device="gpu", **SAME), plant=shown("own"))
    assert_as_on_a_cpu(tmp_path, cell)
    assert facts_of(cell, 0)["identity"] != facts_of(cell, 1)["identity"]


def hang(gpus: list[str], which: str | None) -> None:
    """Rank 1 sleeps for a minute in a forward of step 2, while the other's GPU waits for it."""
    if which is not None:
        show(gpus, which)
    forward = Stage.forward

    def planted(self: Stage, x: Tensor, context: Context) -> Tensor:
        if os.environ["RANK"] == "1" and self.training and context.step == 2:
            time.sleep(60)
        return forward(self, x, context)

    Stage.forward = planted  # type: ignore[method-assign]


@pytest.mark.parametrize("share", [True, False], ids=["one gpu", "nccl"])
def test_a_rank_that_hangs_is_named(
    tmp_path: Path, share: bool, request: pytest.FixtureRequest
) -> None:
    """On a GPU of its own, while the other's host waits for NCCL, too."""
    if not share:
        request.getfixturevalue("two_gpus")
    plant = functools.partial(hang, visible(), "first" if share else None)
    env = (SHARED if share else ENV) | {"GNNHPC_HANG_S": "5"}
    cell = ran(tmp_path, vig(layout="pp2", device="gpu"), env=env, plant=plant)
    assert cell.statuses == [1, 1]
    failure = cell.result.failure
    assert failure is not None
    assert (failure.rank, failure.step) == (1, 2)
    assert failure.error.startswith("hung: no rank did anything")
