"""Which GPU a rank takes, who else has it, and what is said of it; no GPU is needed to know."""

from __future__ import annotations

import dataclasses
import re
from types import SimpleNamespace

import pytest
import torch

from gnnhpc.core.errors import InputError
from gnnhpc.distributed.devices import RankDevice, choose_devices, gpu_identity, nccl_connects
from gnnhpc.distributed.environment import Environment, read_environment


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GNNHPC_SHARE_GPU", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)


def on_n1(local_rank: int) -> Environment:
    return dataclasses.replace(read_environment({}), local_rank=local_rank, host="n1")


def machine_with(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)


def test_a_rank_takes_its_own_of_the_gpus_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown one, as with --gpu-bind=per_task:1, a rank takes that, whatever its local rank."""
    for shown, local_rank, taken in ((4, 0, 0), (4, 3, 3), (1, 1, 0), (2, 3, 1)):
        machine_with(monkeypatch, shown)
        assert choose_devices("gpu", on_n1(local_rank), 1) == [torch.device("cuda", taken)]


def test_fewer_gpus_than_stages_are_refused_unless_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    machine_with(monkeypatch, 3)
    said = (
        "environment: device: found 3 GPUs on n1 for the 4 stages that one process holds; allowed: "
        "at least 4, device: cpu, or GNNHPC_SHARE_GPU=1 to share them knowingly"
    )
    with pytest.raises(InputError, match=re.escape(said)):
        choose_devices("gpu", on_n1(0), 4)
    monkeypatch.setenv("GNNHPC_SHARE_GPU", "1")
    assert choose_devices("gpu", on_n1(0), 4) == [torch.device("cuda", 0)]
    machine_with(monkeypatch, 0)
    with pytest.raises(InputError, match=r"device: found no GPU that torch .* can use on n1"):
        choose_devices("gpu", on_n1(0), 1)
    assert choose_devices("cpu", on_n1(0), 4) == [torch.device("cpu")]


def ranks_with(*gpus: str | None, nccl: bool = True) -> list[RankDevice]:
    return [RankDevice(f"n{rank // 2}", gpu, nccl) for rank, gpu in enumerate(gpus)]


def test_nccl_is_for_whole_gpus_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks share a GPU only where that is allowed, and then not by NCCL."""
    assert nccl_connects(ranks_with("GPU-a", "GPU-b"))
    assert not nccl_connects(ranks_with("GPU-a", "GPU-b", nccl=False))
    assert not nccl_connects(ranks_with("GPU-a", "MIG-b"))
    assert not nccl_connects(ranks_with(None, None))
    one = ranks_with("GPU-a", "GPU-b", "GPU-c", "GPU-b")
    for ranks, share, said in (
        (one, "", "ranks 1, 3 on n0 with one GPU, GPU-b; allowed: a GP"),
        (one, "0", "ranks 1, 3 on n0 with one GPU, GPU-b"),
        (one, "yes", "SHARE_GPU: found 'yes'; allowed: 1, 0 or unset"),
        (ranks_with("GPU-a+GPU-b", "GPU-b"), "", "ranks 0, 1 on n0 with one GPU, GPU-b"),
    ):
        monkeypatch.setenv("GNNHPC_SHARE_GPU", share)
        with pytest.raises(InputError, match=said):
            nccl_connects(ranks)
    monkeypatch.setenv("GNNHPC_SHARE_GPU", "1")
    assert not nccl_connects(one)


def test_a_gpu_and_its_slices_have_names_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="12ab-34cd")
    )
    gpu = torch.device("cuda", 0)
    for shown, name in (
        ("", "GPU-12ab-34cd"),
        ("2,3", "GPU-12ab-34cd"),
        ("MIG-x", "MIG-x"),
        ("MIG-y", "MIG-y"),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", shown)
        assert gpu_identity(gpu) == name
    assert gpu_identity(torch.device("cpu")) is None
