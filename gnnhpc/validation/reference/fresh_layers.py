"""The reference of a model: its layers in plain torch and float64, built anew in one process.

Only parameters and buffers pass from one micro-batch to the next, so that a layer which keeps
anything else, such as the edges of its first micro-batch, differs from the run's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gnnhpc.core.layer_specs import LayerSpecs
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.graph_model import GraphModel
from gnnhpc.models.model import BuildOptions, Context, Model
from gnnhpc.models.seeding import fork_generators, seed_all
from gnnhpc.models.vig.model import Vig
from gnnhpc.validation.reference.batches import Activation, ReferenceBatch
from gnnhpc.validation.reference.dropout_rule import MasksByRule
from gnnhpc.validation.reference.optimizer_rule import Array
from gnnhpc.validation.reference.running_statistics import RunningStatistics

Layers = dict[str, nn.Module]
"""Name -> layer, first to last."""


def seed_of(seed: int, layer: str) -> int:
    """A layer's own seed: the first seven bytes, highest first, of SHA-256 of "seed/layer"."""
    return int(hashlib.sha256(f"{seed}/{layer}".encode()).hexdigest()[:14], 16)


def reference_of(model: Model) -> Model:
    """The model that has the reference's layers: this project's where a library's are measured."""
    if isinstance(model, GraphModel | Vig):
        return model.model_copy(update={"implementation": "fused"})
    return model.loaded


def build_layers(experiment: Experiment, specs: LayerSpecs, dtype: torch.dtype) -> Layers:
    """New layers with the initial values that the seed gives."""
    options, layers = BuildOptions(dtype, experiment.batchnorm), {}
    model = reference_of(experiment.model)
    with fork_generators():
        for spec in specs:
            seed_all(seed_of(experiment.seed, spec.name))
            layers[spec.name] = model.build(spec, options)
    return layers


def parameters_of(layers: Layers) -> dict[str, nn.Parameter]:
    return {f"{n}.{key}": p for n, layer in layers.items() for key, p in layer.named_parameters()}


class FreshLayers:
    """Computes micro-batches of a model from given parameters and buffers."""

    def __init__(self, experiment: Experiment, specs: LayerSpecs) -> None:
        self._experiment, self._specs = experiment, specs
        self._parameters: Mapping[str, Array] = {}
        self._built: list[Layers] = []
        """The layers of each micro-batch since `load`."""
        self._buffers: list[dict[str, Tensor]] = [{} for _ in range(experiment.layout.replicas)]
        self._statistics = [RunningStatistics() for _ in self._buffers]

    def build(self) -> Layers:
        return build_layers(self._experiment, self._specs, torch.float64)

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Take the parameters for the forward passes that follow, and forget gradients."""
        self._parameters, self._built = parameters, []

    def forward(self, batch: ReferenceBatch, *, training: bool) -> list[Tensor]:
        """The output of each layer; moves the buffers of the batch's replica in training."""
        layers = self.build()
        with torch.no_grad():
            for name, parameter in parameters_of(layers).items():
                parameter.copy_(torch.from_numpy(self._parameters[name]))
        for path, buffer in self._buffers[batch.replica].items():
            set_buffer(*_owner(layers, path), buffer)
        if training:
            self._built.append(layers)
            self._statistics[batch.replica].follow(layers)
        context = replace(batch.context, masks=MasksByRule(batch.context.step, training))
        outputs: list[Tensor] = []
        x = self.first_input(batch)
        for layer in layers.values():
            x = called(layer.train(training), x, context)
            outputs.append(dense(x))
        if training:
            self._buffers[batch.replica] = {
                f"{name}.{key}": buffer.detach().clone()
                for name, layer in layers.items()
                for key, buffer in layer.named_buffers(remove_duplicate=False)
            }
        return outputs

    def gradients(self) -> dict[str, Array]:
        """The gradients that backward passes have added up since `load`."""
        total: dict[str, Array] = {}
        for layers in self._built:
            for name, parameter in parameters_of(layers).items():
                if parameter.grad is not None:
                    found = parameter.grad.to_dense().double().numpy()
                    total[name] = total[name] + found if name in total else found
        return total

    def first_input(self, batch: ReferenceBatch) -> Activation:
        """What the first layer takes."""
        takes = reference_of(self._experiment.model).sparse_inputs
        return batch.inputs if takes else dense(batch.inputs)

    def has_batchnorm(self) -> bool:
        """Whether a layer computes with all rows of a micro-batch by a BatchNorm."""
        modules = (m for layer in self.build().values() for m in layer.modules())
        return any(isinstance(module, _BatchNorm) for module in modules)

    def end_minibatch(self) -> None:
        """Move the statistics that move once a mini-batch."""
        for buffers, statistics in zip(self._buffers, self._statistics, strict=True):
            statistics.move(buffers)

    def average_statistics(self) -> None:
        """Give each replica the mean of all replicas' running statistics, as before evaluation."""
        for name in self._buffers[0]:
            if name.endswith(("running_mean", "running_var")):
                mean = torch.stack([each[name] for each in self._buffers]).mean(0)
                for each in self._buffers:
                    each[name] = mean

    def restore(self, replica: int, buffers: Mapping[str, Array]) -> None:
        """Take a replica's buffers from what a run holds."""
        self._buffers[replica] = {n: torch.from_numpy(v) for n, v in buffers.items()}

    def buffers(self, replica: int) -> dict[str, Tensor]:
        """A replica's buffers by full name."""
        return dict(self._buffers[replica])


def set_buffer(module: nn.Module, path: str, value: Tensor) -> None:
    """Set a buffer by its path in a module, in the kind of number that the buffer has there."""
    place, _, name = path.rpartition(".")
    owner = module.get_submodule(place)
    held = owner._buffers.get(name)
    if held is not None and held.shape == value.shape and held.is_contiguous():
        held.copy_(value)
    else:
        # A layer may make a buffer, or another shape of it, while it computes.
        owner._buffers[name] = value.to(value.dtype if held is None else held.dtype, copy=True)


def _owner(layers: Layers, path: str) -> tuple[nn.Module, str]:
    name = next(name for name in layers if path.startswith(f"{name}."))
    return layers[name], path.removeprefix(f"{name}.")


def called(layer: nn.Module, x: Activation, context: Context) -> Activation:
    """What a layer gives; it may change its input in place, and gets a copy."""
    output: Activation = layer(x.clone() if isinstance(x, Tensor) else x, context)
    return output


def dense(x: Activation) -> Tensor:
    return x if isinstance(x, Tensor) else x.to_dense()
