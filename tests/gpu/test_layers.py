"""Layers on a GPU: the reference's function, the same bits each time, and bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.kernels.dropout_mask import layer_mask, number_entries
from gnnhpc.kernels.torch import segments
from gnnhpc.models.context import Context
from gnnhpc.models.layers.attention_layers import AttentionSettings
from gnnhpc.models.layers.attention_layers import GatLayer as FusedAttention
from gnnhpc.models.layers.pyg_layers import GatLayer as ReferenceAttention
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from gnnhpc.models.vig.reference import Ffn, Grapher
from tests.tools.graphs import make_graph

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("form")]
ROWS, INPUTS, HEADS, CHANNELS = 200, 10, 8, 8
GRAPH = make_graph(ROWS, 4_000, seed=5)


def attention_on(device: str, kind: Callable[..., nn.Module], dtype: torch.dtype) -> list[Tensor]:
    """Output and all gradients of one attention layer."""
    (chunk,) = build_chunks(GRAPH, 1, "halo", 1).chunks
    torch.manual_seed(0)
    layer = kind(AttentionSettings("layer0.attention", 0, INPUTS, CHANNELS, HEADS, False, 0.6))
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(ROWS, INPUTS, dtype=dtype, generator=draw)
    return taken(layer.to(device, dtype), x.to(device), Context(graph=chunk.to(device)))


def taken(layer: nn.Module, x: Tensor, context: Context) -> list[Tensor]:
    x.requires_grad_()
    out: Tensor = layer(x, context)
    out.square().sum().backward()
    assert x.grad is not None
    named = sorted(layer.named_parameters())
    return [out.detach(), x.grad, *(p.grad for _, p in named if p.grad is not None)]


def assert_near(found: list[Tensor], expected: list[Tensor], limit: float) -> None:
    """Outputs, then all gradients together: that of a bias before a normalisation is rounding."""
    for part in (slice(0, 1), slice(1, None)):
        ours, theirs = (
            torch.cat([tensor.flatten().cpu().double() for tensor in side[part]])
            for side in (found, expected)
        )
        assert (ours - theirs).norm() <= limit * theirs.norm()


def test_attention_is_pygs_on_either_device() -> None:
    found = attention_on("cuda", FusedAttention, torch.float64)
    for device in ("cpu", "cuda"):
        assert_near(found, attention_on(device, ReferenceAttention, torch.float64), 1e-10)


def test_attention_has_the_same_bits_each_time() -> None:
    first, again = (attention_on("cuda", FusedAttention, torch.float32) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_attention_holds_a_piece_of_the_edges_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph(2_000, 400_000, seed=6)
    (chunk,) = build_chunks(graph, 1, "halo", 1).chunks
    context = Context(graph=chunk.to("cuda"))
    block = context.chunk.blocks[0]
    assert len(block.transpose.edge) == len(block.source)
    monkeypatch.setattr(segments, "PIECE_GPU", 2**20)
    settings = AttentionSettings("layer0.attention", 0, INPUTS, 32, HEADS, False, 0.6)
    layer = FusedAttention(settings).to("cuda")
    x = torch.rand(2_000, INPUTS, device="cuda")
    taken(layer, x, context)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    taken(layer, x.detach(), context)
    of_all_edges = len(block.source) * HEADS * 32 * 4
    assert torch.cuda.max_memory_allocated() - before < of_all_edges / 4


@pytest.mark.parametrize(
    ("fused", "reference", "arguments"),
    [(FusedGrapher, Grapher, ((8, 8), 32)), (FusedFfn, Ffn, (32,))],
    ids=["grapher", "ffn"],
)
def test_vigs_layers_are_the_references(fused: Any, reference: Any, arguments: Any) -> None:
    results = []
    for kind in (fused, reference):
        torch.manual_seed(0)
        layer = kind(*arguments, batchnorm="micro", dtype=torch.float64)
        draw = torch.Generator().manual_seed(1)
        x = torch.rand(6, 64, 3, dtype=torch.float64, generator=draw)
        results.append(taken(layer.to("cuda"), x.to("cuda"), Context()))
    assert_near(*results, 1e-9)


@pytest.mark.parametrize("train", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    ("fused", "arguments"),
    [(FusedGrapher, ((32, 32), 256)), (FusedFfn, (512,))],
    ids=["grapher", "ffn"],
)
def test_vigs_layers_of_published_widths_are_torchs_in_double_precision(
    fused: Any, arguments: Any, train: bool
) -> None:
    """Of 101 images, in single precision; twice, to the same bits."""
    results = []
    for dtype in (torch.float64, torch.float32, torch.float32):
        torch.manual_seed(0)
        layer = fused(*arguments, batchnorm="micro", dtype=torch.float32).to("cuda", dtype)
        draw = torch.Generator().manual_seed(1)
        x = torch.rand(101, 1024, 3, generator=draw).to("cuda", dtype)
        found = taken(layer.train(train), x, Context())
        results.append([*found, *(b for b in layer.buffers() if b.is_floating_point())])
    exact, ours, again = results
    assert_near(ours, exact, 1e-5)
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))


def test_masks_are_the_cpus() -> None:
    mask = layer_mask(3, 7, "layer0.attention", 0.6)
    entries = number_entries(torch.arange(1_000), 8)
    assert torch.equal(mask.keeps(entries), mask.keeps(entries.to("cuda")).cpu())
