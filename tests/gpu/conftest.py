"""Without a GPU these tests are skipped, and say what they miss."""

from __future__ import annotations

import pytest
import torch

from gnnhpc.kernels import dispatch
from gnnhpc.kernels.triton import launch


@pytest.fixture(autouse=True)
def gpus() -> int:
    """How many GPUs there are; at least one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        pytest.skip(f"no GPU that torch {torch.__version__} can use")
    return count


@pytest.fixture(params=["triton", "torch"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers computed by Triton's programs, or as where it is not installed."""
    if request.param == "triton":
        assert launch.why_not() == "", "torch for GPUs brings Triton"
    else:
        monkeypatch.setattr(dispatch, "triton_runs", lambda: False)


@pytest.fixture
def two_gpus(gpus: int) -> None:
    if gpus < 2:
        pytest.skip("1 GPU: NCCL needs one for each of two ranks")
    if not torch.distributed.is_nccl_available():
        pytest.skip("this torch has no NCCL")
