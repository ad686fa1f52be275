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
from gnnhpc.records.failures import line_of_user
from gnnhpc.validation.reference.batches import Activation, Array, ReferenceBatch
from gnnhpc.validation.reference.layer_rules import MasksByRule, RunningStatistics
from gnnhpc.validation.verdicts import CheckError

Layers = dict[str, nn.Module]
"""Name -> layer, first to last."""
SAME = 1e-9
"""Two outputs of a layer on one input are the same up to this relative difference."""
_USE_DTYPE = "layers are to be built with `options.dtype`"


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

    def initial_parameters(self, dtype: torch.dtype) -> dict[str, nn.Parameter]:
        """The values that the seed gives in this precision, by full name."""
        return parameters_of(build_layers(self._experiment, self._specs, dtype))

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


def check_comparable(model: FreshLayers, batch: ReferenceBatch) -> None:
    """Raises CheckError, with the reason in one sentence, for layers that cannot be compared.

    A layer has to compute in float64, and to give the same output twice for one input.
    """
    doing = "building the model"
    try:
        once, again = model.build(), model.build()
        x = model.first_input(batch)
        with torch.no_grad(), fork_generators():
            for name in once:
                doing = f"layer {name}"
                outputs: list[Tensor] = []
                for seed, layers in enumerate((once, again)):
                    seed_all(seed)
                    outputs.append(dense(called(layers[name].train(), x, batch.context)))
                x = _same(name, *outputs)
    except CheckError:
        raise
    # A user's code may fail in any way.
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        line = f" ({line})" if (line := line_of_user(error)) else ""
        raise CheckError(
            f"{doing} fails in float64: {type(error).__name__}: {first}{line}; {_USE_DTYPE}"
        ) from error


def _same(name: str, one: Tensor, other: Tensor) -> Tensor:
    """What a layer gives. Raises CheckError for single precision, or two different outputs."""
    if one.dtype != torch.float64:
        raise CheckError(f"layer {name} returns {one.dtype} in a model of float64: {_USE_DTYPE}")
    if float((one - other).norm()) > SAME * float(one.norm()):
        raise CheckError(
            f"layer {name} returns two different outputs for one input, so that nothing can be "
            "compared: use gnnhpc.Dropout, whose masks follow from the seed"
        )
    return one
