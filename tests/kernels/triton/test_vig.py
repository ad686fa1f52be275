"""ViG's layers by Triton's programs are the reference in float64: outputs, gradients, buffers."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import Tensor

from gnnhpc.kernels.compile import counted_calls
from gnnhpc.kernels.triton import launch as here
from gnnhpc.kernels.vig import torch_vig
from gnnhpc.models.context import Context
from gnnhpc.models.vig import fused
from tests.models.test_vig_fused import KINDS, assert_equal, images, make, results

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NEAR = 1e-5
GRID = (4, 5)


@pytest.fixture(autouse=True)
def by_programs(triton: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single precision is Triton's, in small programs, so that there are several of each."""
    from gnnhpc.kernels.vig import triton_vig

    def kernels_for(dtype: torch.dtype, device: torch.device) -> ModuleType:
        return triton_vig if dtype == torch.float32 else torch_vig

    monkeypatch.setattr(fused, "kernels_for", kernels_for)
    monkeypatch.setattr(triton_vig, "ROWS", 16)
    monkeypatch.setattr(triton_vig, "UNITS", 8)
    monkeypatch.setattr(triton_vig, "PART_ROWS", 32)
    monkeypatch.setattr(triton_vig, "PARTS", 2)


def step(kind: str, *, train: bool, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Of one step on three images whose size is no whole number of programs."""
    layer = make(kind, GRID, fused=dtype == torch.float32, dtype=dtype)
    if dtype == torch.float64:
        layer.load_state_dict(make(kind, GRID, fused=True, dtype=torch.float32).state_dict())
    x = images(3, GRID).float().double().to(DEVICE)
    before = counted_calls()
    found = results(layer.to(DEVICE), x, train=train)
    code = {code for code, _ in counted_calls() - before}
    assert code == ({"triton"} if dtype == torch.float32 else set())
    return found


@pytest.mark.parametrize("train", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_exact_references(kind: str, train: bool) -> None:
    exact = step(kind, train=train, dtype=torch.float64)
    assert_equal(step(kind, train=train), exact, NEAR)


def test_not_a_number_is_not_hidden() -> None:
    layer = make("grapher", GRID, fused=True, dtype=torch.float32).to(DEVICE)
    x = images(2, GRID).float().to(DEVICE)
    x[0, 9, 1] = torch.nan
    with torch.no_grad():
        out = layer.eval()(x, Context())
        assert out[0, 9].isnan().all()
        assert out[1].isfinite().all()
        assert layer.train()(x, Context()).isnan().all()


def test_records_name_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    gpu = torch.device("cuda")
    monkeypatch.setattr(here, "why_not", lambda: "")
    assert fused.note(torch.float32, gpu) == "fused/triton"
    assert fused.note(torch.float64, gpu) == "fused/torch"
    monkeypatch.setattr(here, "why_not", lambda: "no program of triton's runs here")
    assert fused.note(torch.float32, gpu) == "fused/torch"
