"""The collapsed layers are the reference's: outputs, every gradient, running statistics."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gnnhpc.kernels import compile as build
from gnnhpc.kernels.dispatch import plain_torch
from gnnhpc.kernels.vig import torch_vig as vig_torch
from gnnhpc.kernels.vig import vig_mlp as vig_kernel
from gnnhpc.models.context import Context
from gnnhpc.models.layers.batchnorm import BatchNorm, BatchNormMode
from gnnhpc.models.vig import fused as vig_fused
from gnnhpc.models.vig import reference as vig
from tests.tools.backends import threads

KINDS = ("grapher", "ffn")
CPU = torch.device("cpu")
needs_kernel = pytest.mark.skipif(not vig_kernel.available(), reason="no compiled kernel")


@pytest.fixture(params=[pytest.param(vig_kernel, marks=needs_kernel, id="c++"), vig_torch])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that computes single precision."""
    monkeypatch.setattr(vig_fused, "kernels_for", lambda dtype, device: request.param)


def make(
    kind: str,
    grid: vig.Grid,
    *,
    fused: bool,
    dtype: torch.dtype = torch.float64,
    batchnorm: BatchNormMode = "micro",
    width: int = 11,
) -> nn.Module:
    """A layer with parameters and running statistics that are nobody's defaults."""
    torch.manual_seed(7)
    layer: nn.Module
    if kind == "grapher":
        grapher = vig_fused.FusedGrapher if fused else vig.PygGrapher
        layer = grapher(grid, width, batchnorm=batchnorm, dtype=torch.float64)
    else:
        ffn = vig_fused.FusedFfn if fused else vig.Ffn
        layer = ffn(width, batchnorm=batchnorm, dtype=torch.float64)
    torch.manual_seed(8)
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            if name.endswith("running_var"):
                tensor.copy_(torch.rand_like(tensor) + 0.5)
            elif tensor.dim() == 1:
                tensor.add_(torch.randn_like(tensor) * 0.3)
    return layer.to(dtype)


def images(count: int, grid: vig.Grid, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, grid[0] * grid[1], 3, generator=generator, dtype=torch.float64)


def results(layer: nn.Module, x: Tensor, *, train: bool) -> dict[str, Tensor]:
    """Output, gradients of input and parameters, and buffers after one step, in float64.

    Without `train` the output alone.
    """
    dtype = next(layer.parameters()).dtype
    inputs = x.to(dtype).clone().requires_grad_()
    out: Tensor = layer.train(train)(inputs, Context())
    if not train:
        return {"out": out.detach().double()}
    weights = torch.randn(
        out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )
    out.backward(weights.to(dtype))
    assert inputs.grad is not None
    return {"out": out.detach().double(), "input": inputs.grad.double()} | state(layer)


def state(layer: nn.Module) -> dict[str, Tensor]:
    """Gradients of the parameters, and the buffers, in float64."""
    found = dict(layer.named_buffers())
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.dtype == parameter.dtype
        found[name] = parameter.grad
    return {name: value.double() for name, value in found.items()}


def assert_equal(ours: dict[str, Tensor], theirs: dict[str, Tensor], relative: float) -> None:
    """Each within `relative` of the tensor's largest number.

    A bias that a BatchNorm takes away again has gradient zero: there, of the layer's largest.
    """
    assert ours.keys() == theirs.keys()
    largest = max(
        (float(x.abs().max()) for name, x in theirs.items() if name[:2] == "fc"), default=0
    )
    for name, exact in theirs.items():
        scale = float(exact.abs().max())
        if name in {"fc1.bias", "fc2.bias"}:
            scale = largest
        error = float((ours[name] - exact).abs().max())
        assert error <= relative * scale, f"{name}: {error / max(scale, 1e-300):.1e}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("grid", [(5, 7), (1, 4)])
def test_float64_is_the_reference(kind: str, train: bool, grid: vig.Grid) -> None:
    x = images(3, grid)
    ours = results(make(kind, grid, fused=True), x, train=train)
    with plain_torch():
        plain = results(make(kind, grid, fused=True), x, train=train)
    theirs = results(make(kind, grid, fused=False), x, train=train)
    for found in (ours, plain):
        assert_equal(found, theirs, 1e-10)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("train", "count", "grid", "wide"),
    [
        *((train, *size, False) for train in (True, False) for size in ((1, (5, 7)), (3, (1, 4)))),
        (True, 150, (9, 11), False),
        (True, 2, (32, 32), True),
    ],
)
def test_float32_is_the_exact_reference(
    kind: str, train: bool, count: int, grid: vig.Grid, wide: bool
) -> None:
    """The float64 reference is what both float32 implementations round; published widths, too."""
    width = {"grapher": 256, "ffn": 512}[kind] if wide else 11
    x = images(count, grid).float().double()
    ours = make(kind, grid, fused=True, dtype=torch.float32, width=width)
    exact = make(kind, grid, fused=False, width=width)
    exact.load_state_dict(ours.state_dict())
    assert_equal(results(ours, x, train=train), results(exact, x, train=train), 1e-4)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batchnorm", ["micro", "deferred"])
def test_micro_batches_accumulate(kind: str, batchnorm: BatchNormMode) -> None:
    grid, found = (4, 3), []
    ours = make(kind, grid, fused=True, dtype=torch.float32, batchnorm=batchnorm)
    theirs = make(kind, grid, fused=False, batchnorm=batchnorm)
    theirs.load_state_dict(ours.state_dict())
    for layer, dtype in ((ours, torch.float32), (theirs, torch.float64)):
        norms = [module for module in layer.modules() if isinstance(module, BatchNorm)]
        before = norms[0].running_mean.clone()
        outs = [layer(part.to(dtype), Context()) for part in images(6, grid).split(2)]
        for out in reversed(outs):
            out.pow(3).sum().backward()
        assert torch.equal(norms[0].running_mean, before) == (batchnorm == "deferred")
        for norm in norms:
            norm.end_minibatch()
        assert not torch.equal(norms[0].running_mean, before)
        found.append(state(layer))
    assert_equal(found[0], found[1], 1e-5)


@needs_kernel
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bits_on_any_number_of_threads(kind: str) -> None:
    grid, found = (16, 16), []
    for count in (1, 2, 3):
        with threads(count):
            layer = make(kind, grid, fused=True, dtype=torch.float32)
            found.append(results(layer, images(70, grid), train=True))
    for other in found[1:]:
        assert all(torch.equal(other[name], value) for name, value in found[0].items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hidden_activations_are_not_kept(kind: str, dtype: torch.dtype) -> None:
    grid = (16, 16)
    layer = make(kind, grid, fused=True, dtype=dtype, width=64)
    x = images(20, grid).to(dtype).requires_grad_()
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(x, Context())
    parameters = sum(p.numel() for p in layer.parameters())
    assert sum(kept.values()) <= (2 * x.numel() + 4 * parameters) * x.element_size()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", KINDS)
def test_not_a_number_is_not_hidden(kind: str) -> None:
    layer = make(kind, (4, 4), fused=True, dtype=torch.float32).eval()
    x = images(2, (4, 4)).float()
    x[0, 5, 1] = torch.nan
    out = layer(x, Context())
    assert out[0, 5].isnan().all()
    assert out[1].isfinite().all()
    assert layer.train()(x, Context()).isnan().all()


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_shapes_are_named(kind: str) -> None:
    layer = make(kind, (4, 4), fused=True)
    with pytest.raises(ValueError, match=r"\[2, 16\]"):
        layer(torch.zeros(2, 16, dtype=torch.float64), Context())
    if kind == "grapher":
        with pytest.raises(ValueError, match=r"\[images, 16, 3\], found \[2, 15, 3\]"):
            layer(torch.zeros(2, 15, 3, dtype=torch.float64), Context())


@needs_kernel
def test_without_a_compiler_torch_computes_and_the_note_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert vig_fused.note(torch.float64, CPU) == "fused/torch"
    assert vig_fused.note(torch.float32, CPU).startswith("fused/c++ ")
    monkeypatch.setenv("GNNHPC_KERNELS", "off")
    build.load_kernel.cache_clear()
    assert vig_fused.note(torch.float32, CPU) == "fused/torch"
    build.load_kernel.cache_clear()
