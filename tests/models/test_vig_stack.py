"""A stack of ViG's layers computes what the layers compute one by one, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.kernels.vig import vig_mlp as vig_kernel
from gnnhpc.models.layers.stacked import stacks_of
from gnnhpc.models.model import Context
from gnnhpc.models.vig.fused import FusedFfn, FusedGrapher

pytestmark = pytest.mark.skipif(not vig_kernel.available(), reason="no compiled kernel")
GRID, WIDTH, IMAGES, MICROBATCHES = (5, 7), 12, 3, 3
IMAGE = torch.rand(IMAGES, GRID[0] * GRID[1], 3)


def layers(*, batchnorm: str = "micro") -> nn.ModuleList:
    torch.manual_seed(1)
    options: dict[str, Any] = {"batchnorm": batchnorm, "dtype": torch.float32}
    made: list[nn.Module] = []
    for _ in range(2):
        made += FusedGrapher(GRID, WIDTH, **options), FusedFfn(WIDTH, **options)
    module = nn.ModuleList(made)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return module


def one_by_one(modules: Sequence[nn.Module]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        for module in modules:
            x = module(x, Context())
        return x

    return forward


def stacked(modules: Sequence[nn.Module]) -> Callable[[Tensor], Any]:
    (stack,) = stacks_of(list(modules)).values()
    return stack


def train(forward: Callable[[Tensor], Tensor], *, of_input: bool) -> list[Tensor]:
    """Outputs of several micro-batches, and the gradients of the inputs if they are wanted."""
    generator = torch.Generator().manual_seed(2)
    results = []
    for _ in range(MICROBATCHES):
        x = torch.rand(IMAGE.shape, generator=generator).requires_grad_(of_input)
        output = forward(x)
        output.backward(torch.rand(output.shape, generator=generator))
        results += [output.detach()] + ([] if x.grad is None else [x.grad])
    return results


def assert_same(ours: nn.Module, theirs: nn.Module) -> None:
    """Gradients and running statistics."""
    sides = [
        [*module.buffers(), *(p.grad for p in module.parameters())] for module in (ours, theirs)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*sides, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("of_input", [True, False])
def test_outputs_gradients_and_statistics_are_the_same(of_input: bool) -> None:
    """Also in a first layer, whose input needs no gradient."""
    ours, theirs = layers(), layers()
    held = {name: p.grad for name, p in ours.named_parameters()}
    found = train(stacked(ours), of_input=of_input)
    assert all(map(torch.equal, found, train(one_by_one(theirs), of_input=of_input)))
    assert_same(ours, theirs)
    # They may be views of an engine's flat buffer.
    assert all(p.grad is held[name] for name, p in ours.named_parameters())


def test_a_gradient_taken_away_before_the_backward_starts_at_zero() -> None:
    ours, theirs = layers(), layers()
    for module, forward in ((ours, stacked(ours)), (theirs, one_by_one(theirs))):
        output = forward(torch.linspace(0, 1, 105).view(1, 35, 3))
        module.zero_grad(set_to_none=True)
        output.square().sum().backward()
    assert_same(ours, theirs)


def bias(layers: nn.ModuleList) -> nn.Parameter:
    return layers[1].get_parameter("fc1.bias")


CHANGES: dict[str, Callable[[nn.ModuleList], Any]] = {
    "a hook": lambda layers: layers[1].register_forward_hook(lambda *_: None),
    "a parameter's hook": lambda layers: bias(layers).register_post_accumulate_grad_hook(print),
    "a frozen parameter": lambda layers: bias(layers).requires_grad_(False),
    "no gradient to add to": lambda layers: setattr(bias(layers), "grad", None),
    "evaluation": lambda layers: layers.eval(),
}


def test_layers_are_called_one_by_one_where_a_call_would_differ() -> None:
    for name, change in CHANGES.items():
        module = layers()
        change(module)
        assert stacked(module)(IMAGE) is None, name
    stack = stacked(layers())
    for x in (torch.rand(1, 1, 3), torch.cat((IMAGE, IMAGE[:, :1]), 1), IMAGE.double()):
        assert stack(x) is None
    with torch.no_grad():
        assert stack(IMAGE) is None
    assert stacked(layers(batchnorm="deferred"))(IMAGE) is None
