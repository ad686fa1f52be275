"""Which implementation computes a graph layer: this project's (`fused`), PyG's or DGL's.

The implementations of a layer are classes of the same name, which take the same arguments, hold the
same parameters and start from the same values. This file imports torch only where a layer is built.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from gnnhpc.core.errors import InputError
from gnnhpc.models.libraries import check_dgl_is_here, import_dgl

if TYPE_CHECKING:
    import torch
    from torch import nn

Implementation = Literal["fused", "pyg", "dgl"]
"""`fused` is this project's; `pyg` and `dgl` compute the same function with a library's layers."""

_MODULES = {
    "fused": ("attention_layers", "convolution_layers", "deep_layers"),
    "pyg": ("pyg_layers",),
    "dgl": ("dgl_layers",),
}


def dgl_lacks(what: str, allowed: str = "fused or pyg") -> str:
    """The text of `Model.misfit` for a layer that DGL does not have."""
    return f"model.implementation: found dgl, which has no {what}; allowed: {allowed}"


def check_library(implementation: str) -> None:
    """Raise InputError where the library is not installed here; PyG is a dependency."""
    if implementation == "dgl":
        check_dgl_is_here()


def build_implementation(
    implementation: str, name: str, *arguments: object, **options: object
) -> nn.Module:
    """A layer with the initial values of the fused layer.

    Raises InputError where the library lacks the layer or is not installed.
    """
    import torch

    fused = implementation_class("fused", name)(*arguments, **options)
    if implementation == "fused":
        return fused
    # A library's initial values are not used, and must not change those of later layers.
    with torch.random.fork_rng(devices=[]):
        module = implementation_class(implementation, name)(*arguments, **options)
    module.load_state_dict(fused.state_dict())
    return module


def implementation_class(implementation: str, name: str) -> type[nn.Module]:
    """The class of a layer; raises InputError where its library lacks it or is not installed."""
    if implementation == "dgl":
        import_dgl()
    for file in _MODULES[implementation]:
        module: Any = import_module(f"gnnhpc.models.layers.{file}")
        found: type[nn.Module] | None = getattr(module, name, None)
        if found is not None:
            return found
    allowed = "fused or pyg" if implementation == "dgl" else "fused"
    raise InputError("model", "implementation", f"{implementation}, which lacks {name}", allowed)


def implementation_note(
    implementation: str, kernel: str, dtype: torch.dtype, device: torch.device
) -> str:
    """Which code computes the layers here: `pyg`, `dgl`, or `fused/` and c++, triton or torch."""
    if implementation != "fused":
        return implementation
    import torch

    from gnnhpc.kernels import kernel_traits
    from gnnhpc.kernels.arguments import fits_kernel
    from gnnhpc.kernels.gpu import here as gpu

    example = torch.empty(0, dtype=dtype, device=device)
    if fits_kernel(kernel, example):
        return f"fused/c++{kernel_traits(kernel)}"
    return "fused/triton" if gpu.fits(example) else "fused/torch"
