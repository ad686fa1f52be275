"""ViG's layers in C++, Triton and torch are the reference in float64: outputs, every gradient,
running statistics."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gnnhpc.data.data_settings import Cifar10
from gnnhpc.kernels import dispatch
from gnnhpc.kernels.vig import torch_vig, vig_mlp
from gnnhpc.models.layers.batchnorm import BatchNorm, BatchNormMode
from gnnhpc.models.model import BuildOptions, Context
from gnnhpc.models.vig import fused as vig_fused
from gnnhpc.models.vig import reference as vig
from gnnhpc.models.vig.model import Vig
from tests.tools.backends import GPU, codes_that_compute, needs_triton, threads

needs_kernel = pytest.mark.skipif(not vig_mlp.available(), reason="no compiled kernel")
each_kind = pytest.mark.parametrize("kind", ["grapher", "ffn"])
NEAR = {"c++": 1e-4, "torch": 1e-4, "triton": 1e-5, "float64": 1e-10}
"""How near single precision comes to the reference, and torch in double precision."""


def compute_by(code: str, patch: pytest.MonkeyPatch) -> str:
    """Have single precision computed by this code, or skip the test; returns its device.

    Triton's programs are small, so that there are several of each.
    """
    module: ModuleType = torch_vig
    if code == "c++":
        if not vig_mlp.available():
            pytest.skip("no compiled kernel")
        module = vig_mlp
    if code == "triton":
        needs_triton()
        from gnnhpc.kernels.vig import triton_vig as module

        for name, size in {"ROWS": 16, "UNITS": 8, "PART_ROWS": 32, "PARTS": 2}.items():
            patch.setattr(module, name, size)

    def kernels_for(dtype: torch.dtype, device: torch.device) -> ModuleType:
        return module if dtype == torch.float32 else torch_vig

    patch.setattr(vig_fused, "kernels_for", kernels_for)
    return GPU if code == "triton" else "cpu"


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
    options: dict[str, Any] = {"batchnorm": batchnorm, "dtype": torch.float64}
    layer: nn.Module
    if kind == "grapher":
        layer = (vig_fused.FusedGrapher if fused else vig.PygGrapher)(grid, width, **options)
    else:
        layer = (vig_fused.FusedFfn if fused else vig.Ffn)(width, **options)
    torch.manual_seed(8)
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            if name.endswith("running_var"):
                tensor.copy_(torch.rand_like(tensor) + 0.5)
            elif tensor.dim() == 1:
                tensor.add_(torch.randn_like(tensor) * 0.3)
    return layer.to(dtype)


def images(count: int, grid: vig.Grid, mean: float = 0.0) -> Tensor:
    """Of values that single precision has."""
    generator = torch.Generator().manual_seed(0)
    return (torch.rand(count, grid[0] * grid[1], 3, generator=generator) + mean).double()


def results(layer: nn.Module, x: Tensor, *, train: bool) -> dict[str, Tensor]:
    """Output, gradients of input and parameters, and buffers after one step, in float64.

    Without `train` the output alone.
    """
    weight = next(layer.parameters())
    inputs = x.to(weight).clone().requires_grad_()
    out: Tensor = layer.train(train)(inputs, Context())
    found = {"out": out.detach().double()}
    if not train:
        return found
    random = torch.Generator().manual_seed(9)
    out.backward(torch.randn(out.shape, generator=random, dtype=torch.float64).to(out))
    before = next(layer.buffers()).clone()
    for norm in (each for each in layer.modules() if isinstance(each, BatchNorm)):
        deferred = norm.mode == "deferred"
        norm.end_minibatch()
    assert torch.equal(before, next(layer.buffers())) != deferred
    found |= {"input": inputs.grad, **dict(layer.named_buffers())}
    found |= {name: parameter.grad for name, parameter in layer.named_parameters()}
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
        error = float((ours[name].cpu() - exact).abs().max())
        assert error <= relative * scale, f"{name}: {error / max(scale, 1e-300):.1e}"


SIZES: dict[str, tuple[int, vig.Grid, int | None, float]] = {
    "one row of pixels": (1, (1, 4), 11, 0),
    "few images": (3, (4, 5), 11, 0),
    "far from zero": (5, (8, 8), 9, 10),
    "many images": (150, (9, 11), 11, 0),
    "published widths": (2, (32, 32), None, 0),
}
"""Images, pixels, hidden width (None is the published one) and the mean of the pixels, where large
numbers nearly cancel."""


@each_kind
@pytest.mark.parametrize(
    ("code", "size"),
    [
        *((code, size) for code in ("c++", "torch") for size in SIZES),
        ("triton", "few images"),
        ("triton", "far from zero"),
        ("float64", "few images"),
    ],
)
def test_layers_are_the_exact_reference(
    kind: str, code: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The float64 reference is what all implementations in float32 round."""
    device = compute_by(code, monkeypatch)
    count, grid, width, mean = SIZES[size]
    width = width or {"grapher": 256, "ffn": 512}[kind]
    x = images(count, grid, mean)
    options: dict[str, Any] = {"width": width}
    options["batchnorm"] = "deferred" if size == "few images" else "micro"
    for train in (True, False):
        dtype = torch.float64 if code == "float64" else torch.float32
        ours = make(kind, grid, fused=True, dtype=dtype, **options)
        exact = make(kind, grid, fused=False, **options)
        exact.load_state_dict(ours.state_dict())
        with codes_that_compute() as codes:
            found = results(ours.to(device), x, train=train)
        assert codes == {code} - {"torch", "float64"}
        assert_equal(found, results(exact, x, train=train), NEAR[code])


def test_triton_approximates_gelu_as_closely_as_single_precision_rounds() -> None:
    needs_triton()
    from tests.kernels.probe_programs import gelus

    a = torch.linspace(-12, 12, 2**14, device=GPU)
    value, slope = torch.empty_like(a), torch.empty_like(a)
    gelus[(1,)](a, value, slope, SIZE=len(a))
    wide = a.double().requires_grad_()
    exact = F.gelu(wide)
    exact.sum().backward()
    assert wide.grad is not None
    torch.testing.assert_close(value.double(), exact.detach(), rtol=3e-7, atol=3e-7)
    torch.testing.assert_close(slope.double(), wide.grad, rtol=0, atol=6e-7)


@needs_kernel
@each_kind
def test_the_same_bits_on_any_number_of_threads(kind: str) -> None:
    grid, found = (16, 16), []
    for count in (1, 2, 3):
        with threads(count):
            layer = make(kind, grid, fused=True, dtype=torch.float32)
            found.append(results(layer, images(70, grid), train=True))
    for other in found[1:]:
        assert all(torch.equal(other[name], value) for name, value in found[0].items())


@each_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hidden_activations_are_not_kept(kind: str, dtype: torch.dtype) -> None:
    layer, kept = make(kind, (16, 16), fused=True, dtype=dtype, width=64), {}
    x = images(20, (16, 16)).to(dtype).requires_grad_()

    def note(tensor: Tensor) -> Tensor:
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(x, Context())
    parameters = sum(p.numel() for p in layer.parameters())
    assert sum(kept.values()) <= (2 * x.numel() + 4 * parameters) * x.element_size()


@each_kind
@pytest.mark.parametrize("code", ["c++", "torch", "triton"])
def test_not_a_number_is_not_hidden(code: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = compute_by(code, monkeypatch)
    layer = make(kind, (4, 4), fused=True, dtype=torch.float32).eval().to(device)
    x = images(2, (4, 4)).float().to(device)
    x[0, 5, 1] = torch.nan
    with torch.no_grad():
        out = layer(x, Context())
        assert out[0, 5].isnan().all()
        assert out[1].isfinite().all()
        assert layer.train()(x, Context()).isnan().all()


@needs_kernel
def test_records_name_the_code_that_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert vig_fused.note(torch.float64, cpu) == vig_fused.note(torch.float64, gpu) == "fused/torch"
    assert vig_fused.note(torch.float32, cpu).startswith("fused/c++ ")
    pytest.importorskip("triton")
    for runs, code in ((False, "fused/torch"), (True, "fused/triton")):
        monkeypatch.setattr(dispatch, "triton_runs", lambda runs=runs: runs)
        assert vig_fused.note(torch.float32, gpu) == code


def test_as_many_parameters_as_published() -> None:
    config, facts = Vig(), Cifar10().facts()
    built = [config.build(layer, BuildOptions(torch.float64)) for layer in config.outline(facts)]
    counts = [sum(p.numel() for p in layer.parameters()) for layer in built]
    assert (counts[0] + counts[1], counts[-1], sum(counts)) == (138_258, 14_346, 1_120_410)
    assert counts == [layer.parameters for layer in config.outline(facts)]
