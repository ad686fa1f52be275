"""No kernel turns NaN or infinity into a number: a diverged run must not look healthy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.graphs.chunks import build_chunks
from gnnhpc.kernels import gat as kernel
from gnnhpc.kernels import vig as vig_kernel
from gnnhpc.kernels.mask import layer_mask
from gnnhpc.models.attention import AttentionSettings
from gnnhpc.models.context import Context
from gnnhpc.models.dropout import drop
from gnnhpc.models.gat.fused import AttentionLayer as FusedAttention
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from tests.tools.graphs import make_graph

DTYPES = [torch.float32, torch.float64]
BAD = [math.nan, math.inf, -math.inf]
every_value = pytest.mark.parametrize("bad", BAD, ids=["nan", "inf", "minus inf"])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=["float32", "float64"])


def finite(tensors: dict[str, Tensor]) -> dict[str, list[bool]]:
    return {name: tensor.isfinite().flatten().tolist() for name, tensor in tensors.items()}


def attend(layer: FusedAttention, x: Tensor, context: Context) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x, context)
    out.sum().backward()
    assert x.grad is not None
    found = {"out": out.detach(), "x": x.grad}
    return found | {name: p.grad.clone() for name, p in layer.named_parameters()}


@pytest.mark.skipif(not kernel.fits(torch.empty(0)), reason="no compiled kernel")
@pytest.mark.parametrize("heads", [1, 4, 8])
@pytest.mark.parametrize("dropout", [0.0, 0.6])
@every_value
@every_dtype
def test_attention_spreads_it_as_plain_torch_does(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, bad: float, dropout: float, heads: int
) -> None:
    graph = make_graph(30, 60, seed=3)
    (chunk,) = build_chunks(graph, 1, "halo", 1).chunks
    context = Context(graph=chunk)
    torch.manual_seed(0)
    layer = FusedAttention(AttentionSettings("a", 0, 5, 3, heads, False, dropout)).to(dtype)
    x = torch.rand(30, 5, dtype=dtype)
    x[7, 2] = bad
    ours = attend(layer, x, context)
    monkeypatch.setattr(kernel, "fits", lambda _: False)
    plain = attend(layer, x, context)
    assert not ours["out"].isfinite().all()
    assert finite(ours)["out"] == finite(plain)["out"]
    for name, gradient in plain.items():
        # Where plain torch has no number neither have we; we may have fewer.
        ill = ~gradient.isfinite()
        assert not ours[name][ill].isfinite().any(), name


@every_value
@every_dtype
def test_dropout_drops_no_trace_of_it(dtype: torch.dtype, bad: float) -> None:
    for width in (1, 8):
        x = torch.full((400, width), bad, dtype=dtype)
        mask = layer_mask(0, 0, "layer0.dropout", 0.6)
        assert not drop(x, torch.arange(400), mask).isfinite().any()


@pytest.mark.skipif(not vig_kernel.available(), reason="no compiled kernel")
@pytest.mark.parametrize("training", [True, False])
@every_value
def test_vig_spreads_it(bad: float, training: bool) -> None:
    layers: list[nn.Module] = [
        FusedGrapher((4, 4), 16, batchnorm="micro", dtype=torch.float32),
        FusedFfn(16, batchnorm="micro", dtype=torch.float32),
    ]
    for layer in layers:
        layer.train(training)
        x = torch.rand(6, 16, 3)
        x[2, 5, 1] = bad
        x.requires_grad_()
        out = layer(x, Context())
        assert not out[2, 5].isfinite().all()
        out.sum().backward()
        gradients = [p.grad for p in layer.parameters() if p.grad is not None]
        assert not all(gradient.isfinite().all() for gradient in gradients)
