"""Layers on a GPU: bounded memory, and ViG's at their published widths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.kernels.attention import Heads
from gnnhpc.kernels.torch import torch_aggregate
from gnnhpc.models.layers.attention_layers import AttentionSettings
from gnnhpc.models.layers.attention_layers import GatLayer as FusedAttention
from gnnhpc.models.model import Context
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher
from tests.tools.graphs import make_graph

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("form")]
INPUTS, HEADS, CHANNELS = 10, 8, 32


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


def test_attention_holds_a_piece_of_the_edges_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = make_graph(2_000, 400_000, seed=6)
    (chunk,) = build_chunks(graph, 1, "halo", 1).chunks
    context = Context(graph=chunk.to("cuda"))
    block = context.chunk.blocks[0]
    assert len(block.transpose.edge) == len(block.source)
    monkeypatch.setattr(torch_aggregate, "PIECE_GPU", 2**20)
    settings = AttentionSettings("layer0.attention", 0, INPUTS, Heads(HEADS, CHANNELS), 0.6)
    layer = FusedAttention(settings).to("cuda")
    x = torch.rand(2_000, INPUTS, device="cuda")
    taken(layer, x, context)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    taken(layer, x.detach(), context)
    of_all_edges = len(block.source) * HEADS * CHANNELS * 4
    assert torch.cuda.max_memory_allocated() - before < of_all_edges / 4


@pytest.mark.parametrize("train", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize(
    ("fused", "arguments"),
    [(FusedGrapher, ((32, 32), 256)), (FusedFfn, (512,))],
    ids=["grapher", "ffn"],
)
def test_vigs_layers_of_published_widths_are_torchs_in_double_precision(
    fused: Any, arguments: Any, train: bool
) -> None:
    """Of 101 images, in single precision; twice, to the same bits. Evaluation has no gradients."""
    results = []
    for dtype in (torch.float64, torch.float32, torch.float32):
        torch.manual_seed(0)
        layer = fused(*arguments, batchnorm="micro", dtype=torch.float32).to("cuda", dtype)
        draw = torch.Generator().manual_seed(1)
        x = torch.rand(101, 1024, 3, generator=draw).to("cuda", dtype)
        layer.train(train)
        found = taken(layer, x, Context()) if train else [layer(x, Context())]
        results.append([*found, *(b for b in layer.buffers() if b.is_floating_point())])
    exact, ours, again = results
    assert_near(ours, exact, 1e-5)
    assert all(torch.equal(one, other) for one, other in zip(ours, again, strict=True))
