"""What models of graph layers share: which code computes a layer, and how it is built.

The implementations of a layer are classes of the same name, which take the same arguments, hold the
same parameters and start from the same values. No library, nor torch, is imported before a function
here needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from gnnhpc.core.errors import InputError
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.models.libraries import DGL_VERSION, check_dgl_is_here, dgl_has_cuda, import_dgl
from gnnhpc.models.model import BuildOptions, Model, Outputs

if TYPE_CHECKING:
    import torch
    from torch import nn

Implementation = Literal["fused", "pyg", "dgl"]
_MODULES = {
    "fused": ("attention_layers", "convolution_layers", "deep_layers"),
    "pyg": ("pyg_layers",),
    "dgl": ("dgl_layers",),
}


class GraphModel(Model, use_attribute_docstrings=True):
    """A model whose convolutions several libraries have; it ends with a log-softmax."""

    outputs: ClassVar[Outputs] = "log_probabilities"
    uses_batchnorm: ClassVar[bool] = False
    sparse_inputs: ClassVar[bool] = True
    kernel: ClassVar[str] = "aggregate"
    """The C++ kernel behind its fused convolutions."""

    implementation: Implementation = "fused"
    """`fused` is this project's; `pyg` and `dgl` compute the same with a library's layers."""

    @property
    def is_fused(self) -> bool:
        return self.implementation == "fused"

    def build(self, layer: LayerSpec, options: BuildOptions) -> nn.Module:
        """All implementations have the same initial values."""
        from gnnhpc.models.layers.dropout_layer import LogSoftmax

        module = LogSoftmax() if layer.kind == "log_softmax" else self._module(layer)
        # Converted from single precision: a model in float64 starts from the same values.
        return module.to(options.dtype)

    def _module(self, layer: LayerSpec) -> nn.Module:
        """The module of a layer of the outline, in single precision, but of its log-softmax."""
        raise NotImplementedError

    def _implemented(self, name: str, *arguments: object, **options: object) -> nn.Module:
        """The layer of this name with the initial values of the fused layer.

        Raises InputError where the library lacks the layer or is not installed.
        """
        import torch

        fused = implementation_class("fused", name)(*arguments, **options)
        if self.is_fused:
            return fused
        # A library's initial values are not used, and must not change those of later layers.
        with torch.random.fork_rng(devices=[]):
            module = implementation_class(self.implementation, name)(*arguments, **options)
        module.load_state_dict(fused.state_dict())
        return module

    def check_here(self, *, on_gpu: bool = False) -> None:
        if self.implementation != "dgl":
            return
        check_dgl_is_here()
        if on_gpu and not dgl_has_cuda():
            found = f"dgl on gpu, where DGL {DGL_VERSION} is built without CUDA"
            raise InputError("model", "implementation", found, "fused or pyg, or device: cpu")

    def implementation_note(self, dtype: torch.dtype, device: torch.device) -> str:
        """`pyg`, `dgl`, or `fused/` and c++, triton or torch."""
        if not self.is_fused:
            return self.implementation
        import torch

        from gnnhpc.kernels.dispatch import backend

        return f"fused/{backend(self.kernel, torch.empty(0, dtype=dtype, device=device))}"


def layer_spec(
    name: str, inputs: int, outputs: int, kind: str, cost: float, **more: Any
) -> LayerSpec:
    """A layer of rows [inputs] -> [outputs]; it has no parameters unless `more` says so."""
    options = {"parameters": 0} | more
    return LayerSpec(name, (inputs,), (outputs,), kind=kind, cost=cost, **options)


def dgl_lacks(what: str, allowed: str = "fused or pyg") -> str:
    """The text of `Model.misfit` for a layer that DGL does not have."""
    return f"model.implementation: found dgl, which has no {what}; allowed: {allowed}"


def implementation_class(implementation: Implementation, name: str) -> type[nn.Module]:
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
