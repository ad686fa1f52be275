"""A model's layers built anew in one process: initial values, and the reference of custom models.

Only parameters and buffers pass from one micro-batch of a custom model to the next, so that a layer
which keeps anything else, such as the edges of its first micro-batch, differs from the run's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gnnhpc.core.layer_specs import LayerSpecs
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.node_features import SparseRows
from gnnhpc.models.model import BuildOptions
from gnnhpc.models.seeding import fork_generators, seed_all
from gnnhpc.records.failures import line_of_user
from gnnhpc.validation.reference.batches import ReferenceBatch
from gnnhpc.validation.reference.built_in_model import Array, ReferenceModel
from gnnhpc.validation.reference.edge_lists import Activation
from gnnhpc.validation.reference.layer_parts import RunningStatistics
from gnnhpc.validation.verdicts import CheckError, LayerFailedError

SAME = 1e-9
"""Two outputs of a layer on one input are the same up to this relative difference."""
_USE_DTYPE = "build layers with `options.dtype`"
Layers = dict[str, nn.Module]
"""Name -> layer, first to last."""


def seed_of(seed: int, layer: str) -> int:
    """A layer's own seed: the first seven bytes, highest first, of SHA-256 of "seed/layer"."""
    return int(hashlib.sha256(f"{seed}/{layer}".encode()).hexdigest()[:14], 16)


def build_layers(experiment: Experiment, specs: LayerSpecs, dtype: torch.dtype) -> Layers:
    """New layers with the initial values that the seed gives."""
    options, layers = BuildOptions(dtype, experiment.batchnorm), {}
    with fork_generators():
        for spec in specs:
            seed_all(seed_of(experiment.seed, spec.name))
            layers[spec.name] = experiment.model.loaded.build(spec, options)
    return layers


def parameters_of(layers: Layers) -> dict[str, nn.Parameter]:
    return {f"{n}.{key}": p for n, layer in layers.items() for key, p in layer.named_parameters()}


class FreshLayers(ReferenceModel):
    """The reference of a custom model."""

    def __init__(self, experiment: Experiment, specs: LayerSpecs) -> None:
        super().__init__(experiment)
        self._specs = specs
        self._parameters: Mapping[str, Array] = {}
        self._built: list[Layers] = []
        """The layers of each micro-batch since `load`."""

    def build(self) -> Layers:
        return build_layers(self._experiment, self._specs, torch.float64)

    def load(self, parameters: Mapping[str, Array]) -> None:
        self._parameters, self._built = parameters, []

    def forward(self, batch: ReferenceBatch, step: int, *, training: bool) -> Sequence[Activation]:
        layers = self.build()
        with torch.no_grad():
            for name, parameter in parameters_of(layers).items():
                parameter.copy_(torch.from_numpy(self._parameters[name]))
        for path, buffer in self._buffers[batch.replica].items():
            set_buffer(*_owner(layers, path), buffer)
        if training:
            self._built.append(layers)
            self._record_deferred(layers, batch.replica)
        outputs: list[Activation] = []
        x = self.first_input(batch)
        for layer in layers.values():
            x = _call(layer.train(training), x, batch)
            outputs.append(_dense(x))
        if training:
            self._buffers[batch.replica] = {
                f"{name}.{key}": buffer.detach().clone()
                for name, layer in layers.items()
                for key, buffer in layer.named_buffers(remove_duplicate=False)
            }
        return outputs

    def gradients(self) -> dict[str, Array]:
        total: dict[str, Array] = {}
        for layers in self._built:
            for name, parameter in parameters_of(layers).items():
                if parameter.grad is not None:
                    found = parameter.grad.to_dense().double().numpy()
                    total[name] = total[name] + found if name in total else found
        return total

    def first_input(self, batch: ReferenceBatch) -> Activation:
        """What the first layer takes."""
        takes = self._experiment.model.loaded.sparse_inputs
        return batch.inputs if takes else _dense(batch.inputs)

    def has_batchnorm(self) -> bool:
        """Whether a layer computes with all rows of a micro-batch by a BatchNorm."""
        modules = (m for layer in self.build().values() for m in layer.modules())
        return any(isinstance(module, _BatchNorm) for module in modules)

    def _record_deferred(self, layers: Layers, replica: int) -> None:
        """Record what each BatchNorm that moves once a mini-batch is given."""
        for name, layer in layers.items():
            for path, module in layer.named_modules():
                if isinstance(module, _BatchNorm) and getattr(module, "mode", "micro") != "micro":
                    full = f"{name}.{path}" if path else name
                    module.register_forward_pre_hook(partial(self._record, full, replica))

    def _record(self, name: str, replica: int, _module: nn.Module, given: tuple[Any, ...]) -> None:
        rows = given[0].detach()
        mean, variance = rows.mean(0), rows.var(0, correction=0)
        statistics = self._pending[replica].setdefault(name, RunningStatistics(mean, variance))
        statistics.pending.append((mean, variance, len(rows)))


def check_comparable(model: FreshLayers, batch: ReferenceBatch) -> None:
    """Raises CheckError, with the reason in one sentence, for layers that cannot be compared.

    A layer has to compute in float64, and to give the same output twice for one input.
    """
    try:
        once, again = model.build(), model.build()
    # A user's code may fail in any way.
    except Exception as error:
        raise CheckError(f"the model cannot be built: {in_words(error)}") from error
    for name, parameter in parameters_of(once).items():
        if parameter.requires_grad and parameter.dtype != torch.float64:
            kind = _name(parameter.dtype)
            raise CheckError(f"parameter {name} is {kind} in a model of float64: {_USE_DTYPE}")
    x = model.first_input(batch)
    with torch.no_grad(), fork_generators():
        for name in once:
            outputs = []
            for number, layers in enumerate((once, again)):
                seed_all(number)
                try:
                    outputs.append(_dense(_call(layers[name].train(), x, batch)))
                except Exception as error:
                    raise LayerFailedError(f"layer {name} fails: {in_words(error)}") from error
            x = outputs[0]
            if x.dtype != torch.float64:
                returns = f"layer {name} returns {_name(x.dtype)} in a model of float64"
                raise CheckError(f"{returns}: {_USE_DTYPE}")
            if float((x - outputs[1]).norm()) > SAME * float(x.norm()):
                raise CheckError(
                    f"layer {name} returns two different outputs for one input, so that nothing "
                    "can be compared: use gnnhpc.Dropout, whose masks follow from the seed"
                )


def in_words(error: Exception) -> str:
    """The error, the line of the user's file, and advice where it is about kinds of numbers."""
    first = (str(error).splitlines() or [""])[0]
    line = line_of_user(error)
    place = f" ({line})" if line else ""
    advice = f"; {_USE_DTYPE}" if re.search("dtype|float|double", first, re.IGNORECASE) else ""
    return f"{type(error).__name__}: {first}{place}{advice}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def set_buffer(module: nn.Module, path: str, value: Tensor) -> None:
    """Set a buffer by its path in a module, in the kind of number that the buffer has there.

    A buffer that the module has not made yet is registered; without its module it is left out.
    """
    place, _, name = path.rpartition(".")
    try:
        owner = module.get_submodule(place)
    except AttributeError:
        return
    held = owner._buffers.get(name)
    if held is None:
        owner.__dict__.pop(name, None)
        owner.register_buffer(name, value.clone())
    elif held.shape == value.shape and held.is_contiguous():
        held.copy_(value)
    else:
        owner._buffers[name] = value.to(held.dtype, copy=True)


def _owner(layers: Layers, path: str) -> tuple[nn.Module, str]:
    name = next(name for name in layers if path.startswith(f"{name}."))
    return layers[name], path.removeprefix(f"{name}.")


def _call(layer: nn.Module, x: Tensor | SparseRows, batch: ReferenceBatch) -> Tensor | SparseRows:
    """Call a layer, which may change its input in place, on a copy."""
    output: Tensor | SparseRows = layer(x.clone() if isinstance(x, Tensor) else x, batch.context)
    return output


def _dense(x: Tensor | SparseRows) -> Tensor:
    return x if isinstance(x, Tensor) else x.to_dense()
