"""Whose code computes a graph layer: ours, PyG's or DGL's, under the same names.

`gnnhpc.models.<group>.fused`, `.pyg` and `.dgl` have classes of the same names, which take the same
arguments, hold the same parameters and start from the same values. Free of torch until one is asked
for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator

from gnnhpc.core.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

OLDER_NAME = {"reference": "pyg"}
"""What earlier sweeps and records call an implementation."""


_LACKING = "model.implementation: found dgl, which has no {what}; allowed: {allowed}"


def dgl_lacks(what: str, allowed: str = "fused or pyg") -> str:
    """The words of `Model.misfit` for a layer that DGL does not have."""
    return _LACKING.format(what=what, allowed=allowed)


def check_library(implementation: str) -> None:
    """Raises InputError where the library is not installed here; PyG always is."""
    if implementation == "dgl":
        from gnnhpc.models.dgl_import import check_dgl_is_here

        check_dgl_is_here()


def _current_name(value: object) -> object:
    return OLDER_NAME.get(value, value) if isinstance(value, str) else value


Implementation = Annotated[Literal["fused", "pyg", "dgl"], BeforeValidator(_current_name)]
"""`fused` is ours; `pyg` and `dgl` compute the same function with the library's own layers."""


def build_implementation(
    implementation: str, group: str, name: str, *arguments: object, **options: object
) -> nn.Module:
    """A layer that starts from the values of our own form.

    Raises InputError where the library lacks it or is not installed.
    """
    import torch

    fused = implementation_class("fused", group, name)(*arguments, **options)
    if implementation == "fused":
        return fused
    # What the library draws is not used, and changes no later layer's values.
    with torch.random.fork_rng(devices=[]):
        module = implementation_class(implementation, group, name)(*arguments, **options)
    # Strictly: a parameter of another name or shape is a mistake of ours.
    module.load_state_dict(fused.state_dict())
    return module


def implementation_class(implementation: str, group: str, name: str) -> type[nn.Module]:
    """The class of a layer; raises InputError where its library lacks it or is not installed."""
    if implementation == "dgl":
        from gnnhpc.models.dgl_import import import_dgl

        import_dgl()
    module: Any = import_module(f"gnnhpc.models.{group}.{implementation}")
    found: type[nn.Module] | None = getattr(module, name, None)
    if found is None:
        allowed = "fused or pyg" if implementation == "dgl" else "fused"
        raise InputError(
            "model", "implementation", f"{implementation}, which lacks {name}", allowed
        )
    return found


def implementation_note(
    implementation: str, kernel: str, dtype: torch.dtype, device: torch.device
) -> str:
    """Which code computes the layers here: PyG's is recorded under its older name."""
    if implementation != "fused":
        return "reference" if implementation == "pyg" else implementation
    import torch

    from gnnhpc.kernels import kernel_traits
    from gnnhpc.kernels.arguments import fits_kernel
    from gnnhpc.kernels.gpu import here as gpu

    example = torch.empty(0, dtype=dtype, device=device)
    if fits_kernel(kernel, example):
        return f"fused/c++{kernel_traits(kernel)}"
    return "fused/triton" if gpu.fits(example) else "fused/torch"
