"""Attention in C++, Triton and torch on strange scores, padding, and what is not finite; that it is
PyG's shows tests/models/test_layer_implementations.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gnnhpc.graphs.blocks import Block
from gnnhpc.graphs.halo_chunks import build_chunks
from gnnhpc.kernels.attention import Heads, attend
from gnnhpc.kernels.dispatch import Backend
from gnnhpc.kernels.dropout_mask import layer_mask
from gnnhpc.kernels.torch import torch_aggregate
from gnnhpc.models.gat import Gat, Gatv2
from gnnhpc.models.layers.attention_layers import AttentionSettings, GatLayer, Gatv2Layer
from gnnhpc.models.model import Context
from tests.kernels.test_aggregate import small_block
from tests.tools.backends import computed_by, device_of
from tests.tools.graphs import gradients, make_graph, make_model

MASK = layer_mask(3, 7, "layer0.attention", 0.6)
NEAR = {torch.float32: 1e-5, torch.float64: 1e-13}
FEW = 6
"""Rows with a gradient, of 60: backward could do with these alone."""


def taken(layer: nn.Module, x: Tensor, context: Context, few: bool) -> dict[str, Tensor]:
    """Output and gradients, of a loss of all rows or of a few, whose outputs are finite."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    out = layer(x, context)
    assert not out.isfinite().all()
    assert out[:FEW].isfinite().all() or not few
    out[: FEW if few else None].sum().backward()
    assert x.grad is not None
    return {"out": out.detach(), "x": x.grad} | {
        name: p.grad.clone() for name, p in layer.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("few", [False, True], ids=["all rows", "few rows"])
@pytest.mark.parametrize("form", [GatLayer, Gatv2Layer])
@pytest.mark.parametrize(("heads", "dropout"), [(1, 0.6), (8, 0.0)])
def test_what_is_not_finite_spreads_as_in_plain_torch(
    heads: int, dropout: float, form: Callable[..., nn.Module], few: bool
) -> None:
    """No kernel turns NaN or infinity into a number: a diverged run must not look healthy."""
    (chunk,) = build_chunks(make_graph(60, 60, seed=3), 1, "halo", 1).chunks
    context = Context(graph=chunk)
    torch.manual_seed(0)
    layer = form(AttentionSettings("a", 0, 5, Heads(heads, 3), dropout))
    source, target = chunk.blocks[0].source, chunk.blocks[0].target
    near = set(source[target < FEW].tolist())
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.rand(60, 5)
        x[next(node for node in range(60) if node not in near), 2] = bad
        with computed_by("c++"):
            ours = taken(layer, x, context, few)
        with computed_by("torch"):
            plain = taken(layer, x, context, few)
        assert torch.equal(ours["out"].isfinite(), plain["out"].isfinite())
        for name, gradient in plain.items():
            # Where plain torch has no number neither have we; we may have fewer.
            assert not ours[name][~gradient.isfinite()].isfinite().any(), name


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that is made meanwhile."""

    found = 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = operation(*args, **(kwargs or {}))
        for each in made if isinstance(made, tuple | list) else (made,):
            if isinstance(each, torch.Tensor):
                self.found = max(self.found, each.numel())
        return made


@pytest.mark.parametrize("kind", [Gat, Gatv2])
def test_in_torch_nothing_is_larger_than_edges_times_heads(
    kind: type[Gat], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Reddit, edges x heads x channels would be 29 GB."""
    monkeypatch.setattr(torch_aggregate, "PIECE_CPU", 2_000)
    config = kind(heads=4, hidden=4, dropout=0.6)
    graph = make_graph(100, 4_000, seed=3)
    chunkset = build_chunks(graph, 1, "halo", config.layers)
    edges = len(chunkset.chunks[0].blocks[0].source)
    model = make_model(graph, config)
    with computed_by("torch"):
        gradients(model, chunkset)
        with Largest() as seen:
            gradients(model, chunkset)
    assert seen.found <= edges * 4


LARGE = 1e4
"""Of scores: exponentials of their differences are infinite."""
SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "usual": lambda h: h,
    "large": lambda h: h * LARGE,
    "zero": lambda h: h * (torch.arange(len(h), device=h.device) % 2)[:, None, None],
    "low": lambda h: -h.abs() * LARGE,
    "no numbers": lambda h: h.index_fill(0, torch.tensor([7], device=h.device), math.nan),
}
PROGRAMS = [
    *((scores, torch.float64, torch.int64, 3, 5) for scores in SCORES),
    ("usual", torch.float32, torch.int32, 8, 8),
    ("usual", torch.float64, torch.int32, 1, 41),
]


def attended(
    code: Backend, inputs: Sequence[Tensor | None], block: Block, heads: Heads
) -> list[Tensor]:
    """The output, and the gradients of all inputs together, where they are stored head by head."""
    ours = [each if each is None else each.detach().requires_grad_() for each in inputs]
    source, target, vectors, bias = ours
    with computed_by(code):
        order = heads.ordered(torch.arange(heads.width))
        products = [x if x is None else x[:, order] for x in (source, target)]
        mask = MASK if heads.channels != 41 else None
        out = attend(*products, vectors, bias, block, heads, mask)
        out.backward(2 * out.detach())
    grads = [leaf.grad.flatten() for leaf in ours if leaf is not None and leaf.grad is not None]
    return [out.detach(), torch.cat(grads)]


@pytest.mark.quick(
    *(f"gat-{code}-usual-torch.float64-torch.int32-1-41" for code in ("c++", "triton")),
    *(f"gat-{code}-large-torch.float64-torch.int64-3-5" for code in ("c++", "triton")),
    *(f"gatv2-{code}-low-torch.float64-torch.int64-3-5" for code in ("c++", "triton")),
)
@pytest.mark.parametrize(("scores", "dtype", "index", "heads", "channels"), PROGRAMS, ids=str)
@pytest.mark.parametrize("code", ["c++", "triton"])
@pytest.mark.parametrize("model", ["gat", "gatv2"])
def test_attention_is_that_of_torch(
    model: str,
    code: Backend,
    scores: str,
    dtype: torch.dtype,
    index: torch.dtype,
    heads: int,
    channels: int,
) -> None:
    device = device_of(code)
    block = small_block(index).to(device)
    draw = torch.Generator().manual_seed(1)
    h, first, second = (
        torch.randn((count, heads, channels), generator=draw, dtype=dtype) for count in (20, 1, 1)
    )
    h = SCORES[scores](h)
    if scores == "low":
        h, first, second = h.abs(), -first.abs(), -second.abs()
    h, bias = h.flatten(1), torch.zeros(heads * channels, dtype=dtype)
    inputs = [h, None, torch.cat((first, second)), bias]
    if model == "gatv2":
        inputs = [h, h / 2, first, bias]
    inputs = [x if x is None else x.to(device) for x in inputs]
    found, expected = (
        attended(each, inputs, block, Heads(heads, channels)) for each in (code, "torch")
    )
    assert (scores == "no numbers") == bool(found[0].isnan().any())
    # In gradients of scores, numbers of their size cancel.
    near = NEAR[dtype] * (LARGE if scores in ("large", "low") else 1.0)
    for one, other in zip(found, expected, strict=True):
        assert one.isnan().equal(other.isnan())
        assert (one - other).nan_to_num(0).norm() <= near * other.nan_to_num(0, 0, 0).norm()
