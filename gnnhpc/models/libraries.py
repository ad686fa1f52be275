"""Which implementation computes a graph layer: this project's (`fused`), PyG's or DGL's.

The implementations of a layer are classes of the same name, which take the same arguments, hold the
same parameters and start from the same values. No library, nor torch, is imported before a function
here needs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import types
from typing import TYPE_CHECKING, Any, Literal

from gnnhpc.core.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

DGL_VERSION = "1.1.3"
"""Later versions have no package that imports with today's torch."""
SAMPLER_KEY = ("sampling", "sampler")
"""The key by which an experiment names its sampler."""
PYG_SAMPLERS = ("pyg_lib", "torch_sparse")
"""Either of them has the compiled sampler behind PyG's NeighborLoader."""


def check_dgl_is_here(where: str = "model", key: str = "implementation") -> None:
    """Raise InputError where DGL is not installed; import nothing.

    `where` and `key` name the setting that needs it.
    """
    if importlib.util.find_spec("dgl") is None:
        raise _missing(where, key, "dgl, which is not installed")


def import_dgl(where: str = "model", key: str = "implementation") -> Any:
    """DGL on its backend for torch, without writing to the user's home.

    Raises InputError where it is not installed, broken, or of another version.
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")
    _give_setuptools_its_packaging()
    try:
        dgl = importlib.import_module("dgl")
    except ModuleNotFoundError as error:
        if error.name != "dgl":
            raise _missing(where, key, f"DGL, which cannot be imported ({error})") from None
        raise _missing(where, key, "dgl, which is not installed") from None
    except (ImportError, OSError) as error:
        raise _missing(where, key, f"DGL, which cannot be imported ({error})") from None
    if dgl.__version__.partition("+")[0] != DGL_VERSION:
        raise _missing(where, key, f"DGL {dgl.__version__}")
    return dgl


def _missing(where: str, key: str, found: str) -> InputError:
    return InputError(
        where,
        key,
        found,
        f"DGL {DGL_VERSION}: make setup-dgl, or pip install 'gnnhpc[dgl]'",
    )


def _give_setuptools_its_packaging() -> None:
    """Provide the copy of `packaging` that DGL 1.1.3 imports from setuptools before version 71."""
    name = "setuptools.extern"
    if name in sys.modules:
        return
    try:
        importlib.import_module(name)
    except ImportError:
        packaging = importlib.import_module("packaging")
        version = importlib.import_module("packaging.version")
        extern = types.ModuleType(name)
        extern.__dict__["packaging"] = packaging
        sys.modules |= {name: extern, f"{name}.packaging": packaging}
        sys.modules[f"{name}.packaging.version"] = version


def check_sampler_is_here(sampler: str) -> None:
    """Raise InputError where the library of `pyg` or `dgl` is not installed; `ours` needs none."""
    if sampler == "dgl":
        check_dgl_is_here(*SAMPLER_KEY)
    if sampler == "pyg" and not any(map(importlib.util.find_spec, PYG_SAMPLERS)):
        raise pyg_sampler_missing("is not installed")


def pyg_sampler_missing(why: str) -> InputError:
    """The error for a sampler of PyG's whose library cannot be used."""
    return InputError(
        *SAMPLER_KEY,
        f"pyg, whose torch-sparse or pyg-lib {why}",
        "one of them: make setup-pyg-sampler",
    )


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
        module: Any = importlib.import_module(f"gnnhpc.models.layers.{file}")
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

    from gnnhpc.kernels.compile import kernel_traits
    from gnnhpc.kernels.dispatch import backend

    code = backend(kernel, torch.empty(0, dtype=dtype, device=device))
    return f"fused/{code}{kernel_traits(kernel) if code == 'c++' else ''}"
