"""The reference of a model: its layers in plain torch and float64, built anew in one process.

Only parameters and buffers pass from one micro-batch to the next, so that a layer which keeps
anything else, such as the edges of its first micro-batch, differs from the run's. Dropout masks and
running statistics follow documented rules here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gnnhpc.core.layer_specs import LayerSpecs
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels.dropout_mask import Mask
from gnnhpc.models.graph_model import GraphModel
from gnnhpc.models.model import BuildOptions, Context, Model
from gnnhpc.models.seeding import fork_generators, seed_all
from gnnhpc.models.vig.model import Vig
from gnnhpc.records.failures import line_of_user
from gnnhpc.validation.reference.batches import Activation, Array, ReferenceBatch
from gnnhpc.validation.verdicts import CheckError

MOMENTUM = 0.1
"""The share by which a mini-batch moves running statistics."""
_HALF = np.uint64(2**32)
_FIRST, _SECOND = np.uint64(0x21F0AAAD), np.uint64(0x735A2D97)


class MaskByRule(Mask):
    """A mask whose entries are hashed by numpy.

    Each half of the key is added to an entry's number before a round of multiplying and shifting;
    an entry whose result is below p * 2**32 is dropped.
    """

    def keeps(self, entries: Tensor) -> Tensor:
        first, second = np.uint64(int(self.first)), np.uint64(int(self.second))
        number = (entries.numpy().astype(np.uint64) + first) % _HALF
        number = (number ^ (number >> np.uint64(16))) * _FIRST % _HALF
        number = (number ^ (number >> np.uint64(15))) + second
        number = number % _HALF * _SECOND % _HALF
        number ^= number >> np.uint64(15)
        return torch.from_numpy(number >= np.uint64(self.threshold))


@dataclass(frozen=True)
class MasksByRule:
    """The masks of one step; an evaluation has none."""

    step: int
    training: bool

    def mask(self, seed: int, name: str, p: float) -> Mask | None:
        """The mask of layer `name`, which drops the share `p`.

        Its key is the first two 32-bit numbers of the SHA-256 of "<seed>/<step>/<name>".
        """
        if not self.training or not p:
            return None
        digest = hashlib.sha256(f"{seed}/{self.step}/{name}".encode()).hexdigest()
        least = min(round(p * 2**32), 2**32 - 1)
        return MaskByRule(int(digest[:8], 16), int(digest[8:16], 16), least, 1.0 / (1.0 - p))


class RunningStatistics:
    """Running statistics of one replica that move once a mini-batch, by all of its rows together.

    They come from the inputs of its BatchNorms.
    """

    def __init__(self) -> None:
        self._batches: dict[str, list[tuple[Tensor, Tensor, int]]] = {}
        """BatchNorm -> mean, biased variance and rows of each micro-batch."""

    def follow(self, layers: Mapping[str, nn.Module], repeats: int = 1) -> None:
        """Record the inputs of BatchNorms in mode `deferred`; rows count `repeats` times."""
        for name, layer in layers.items():
            for path, module in layer.named_modules():
                if isinstance(module, _BatchNorm) and getattr(module, "mode", "micro") != "micro":
                    full = f"{name}.{path}" if path else name
                    module.register_forward_pre_hook(partial(self._record, full, repeats))

    def _record(self, name: str, repeats: int, _: nn.Module, inputs: tuple[Tensor]) -> None:
        rows = inputs[0].detach()
        statistics = rows.mean(0), rows.var(0, correction=0), len(rows) * repeats
        self._batches.setdefault(name, []).append(statistics)

    def move(self, buffers: dict[str, Tensor]) -> None:
        """Move the buffers, by full name, at the mini-batch's end."""
        for name, batches in self._batches.items():
            rows = sum(count for _, _, count in batches)
            mean = torch.stack([m * count for m, _, count in batches]).sum(0) / rows
            squares = torch.stack([(v + (m - mean).square()) * n for m, v, n in batches]).sum(0)
            for key, new in (("running_mean", mean), ("running_var", squares / (rows - 1))):
                before = buffers[f"{name}.{key}"]
                buffers[f"{name}.{key}"] = (1 - MOMENTUM) * before + MOMENTUM * new
            tracked = f"{name}.num_batches_tracked"
            buffers[tracked] = buffers[tracked] + 1
        self._batches.clear()


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
        self.buffers: list[dict[str, Tensor]] = [{} for _ in range(experiment.layout.replicas)]
        """The buffers of each replica by full name."""
        self._statistics = [RunningStatistics() for _ in self.buffers]

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
        for path, buffer in self.buffers[batch.replica].items():
            name = next(name for name in layers if path.startswith(f"{name}."))
            set_buffer(layers[name], path.removeprefix(f"{name}."), buffer)
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
            self.buffers[batch.replica] = {
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
        for buffers, statistics in zip(self.buffers, self._statistics, strict=True):
            statistics.move(buffers)

    def average_statistics(self) -> None:
        """Give each replica the mean of all replicas' running statistics, as before evaluation."""
        for name in self.buffers[0]:
            if name.endswith(("running_mean", "running_var")):
                mean = torch.stack([each[name] for each in self.buffers]).mean(0)
                for each in self.buffers:
                    each[name] = mean

    def restore(self, replica: int, buffers: Mapping[str, Array]) -> None:
        """Take a replica's buffers from what a run holds."""
        self.buffers[replica] = {n: torch.from_numpy(v) for n, v in buffers.items()}


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
