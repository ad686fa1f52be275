"""The reference of a model: its layers one after another in one process, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.convolutions import Convolutions
from gnnhpc.models.deep_gcn import Deep
from gnnhpc.models.gat import Gat
from gnnhpc.models.vig.model import Vig
from gnnhpc.validation.reference.attention import attention_layer
from gnnhpc.validation.reference.convolutions import convolution_layer
from gnnhpc.validation.reference.deep_gcn import deep_layer
from gnnhpc.validation.reference.forward_pass import Activation, ForwardPass, RunningStatistics
from gnnhpc.validation.reference.layer import ReferenceLayer, seed_of
from gnnhpc.validation.reference.micro_batches import ReferenceBatch
from gnnhpc.validation.reference.vig import vig_layer

Array = npt.NDArray[np.float64]


class ReferenceModel(Protocol):
    """A model that computes micro-batches from given parameters and buffers."""

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The parameters' initial values by full name, as the seed gives them in `dtype`."""
        ...

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Take the parameters for the forward passes that follow, and forget gradients."""
        ...

    def forward(self, batch: ReferenceBatch, step: int, *, training: bool) -> Sequence[Activation]:
        """The output of each layer; moves the buffers of the batch's replica in training."""
        ...

    def gradients(self) -> dict[str, Array]:
        """The gradients that backward passes have added up since `load`."""
        ...

    def end_minibatch(self) -> None:
        """Move the statistics that move once a mini-batch."""
        ...

    def average_statistics(self) -> None:
        """Give each replica the mean of all replicas' running statistics, as before evaluation."""
        ...

    def restore(self, replica: int, buffers: Mapping[str, Array]) -> None:
        """Take a replica's buffers from what a run holds."""
        ...

    def buffers(self, replica: int) -> dict[str, Tensor]:
        """A replica's buffers by full name."""
        ...


def reference_layer(model: object, spec: LayerSpec) -> ReferenceLayer | None:
    """One layer's reference; None for a custom model's."""
    match model:
        case Vig():
            return vig_layer(model, spec)
        case Gat():
            return attention_layer(model, spec)
        case Deep():
            return deep_layer(model, spec)
        case Convolutions():
            return convolution_layer(model, spec)
    return None


class BuiltInModel:
    """The reference of a built-in model."""

    def __init__(
        self, experiment: Experiment, specs: LayerSpecs, layers: Sequence[ReferenceLayer]
    ) -> None:
        self._experiment, self._specs, self._layers = experiment, specs, layers
        self._parameters: dict[str, Tensor] = {}
        self._side = round(specs[0].inputs[0] ** 0.5)
        self._statistics = [
            {
                name: RunningStatistics(torch.zeros(n).double(), torch.ones(n).double())
                for layer in layers
                for name, n in layer.norms().items()
            }
            for _ in range(experiment.layout.replicas)
        ]

    def initial(self, dtype: torch.dtype) -> dict[str, Tensor]:
        values: dict[str, Tensor] = {}
        with torch.random.fork_rng(devices=[]):
            for spec, layer in zip(self._specs, self._layers, strict=True):
                torch.default_generator.manual_seed(seed_of(self._experiment.seed, spec.name))
                values |= {f"{spec.name}.{key}": v for key, v in layer.initial(dtype).items()}
        return values

    def load(self, parameters: Mapping[str, Array]) -> None:
        self._parameters = {
            name: torch.from_numpy(value).clone().requires_grad_()
            for name, value in parameters.items()
        }

    def forward(self, batch: ReferenceBatch, step: int, *, training: bool) -> Sequence[Activation]:
        here = ForwardPass(
            step,
            self._experiment.seed,
            training,
            self._experiment.batchnorm == "deferred",
            self._statistics[batch.replica],
            batch.edges,
            batch.nodes,
            batch.graph_of_row,
            batch.graphs,
            self._side,
        )
        outputs: list[Activation] = []
        x, layer_edges = batch.inputs, iter(batch.layer_edges)
        for spec, layer in zip(self._specs, self._layers, strict=True):
            if spec.rows == "hop" and batch.layer_edges:
                here.edges = next(layer_edges)
            start = f"{spec.name}."
            mine = {
                name.removeprefix(start): value
                for name, value in self._parameters.items()
                if name.startswith(start)
            }
            x = layer.forward(x, mine, here)
            outputs.append(x)
        return outputs

    def gradients(self) -> dict[str, Array]:
        return {
            name: value.grad.numpy()
            for name, value in self._parameters.items()
            if value.grad is not None
        }

    def end_minibatch(self) -> None:
        for replica in self._statistics:
            for statistics in replica.values():
                statistics.move()

    def average_statistics(self) -> None:
        for name in self._statistics[0]:
            each = [replica[name] for replica in self._statistics]
            mean = torch.stack([s.mean for s in each]).mean(0)
            variance = torch.stack([s.variance for s in each]).mean(0)
            for statistics in each:
                statistics.mean, statistics.variance = mean, variance

    def restore(self, replica: int, buffers: Mapping[str, Array]) -> None:
        for name, statistics in self._statistics[replica].items():
            statistics.mean = torch.from_numpy(buffers[f"{name}.running_mean"])
            statistics.variance = torch.from_numpy(buffers[f"{name}.running_var"])
            statistics.batches = int(buffers[f"{name}.num_batches_tracked"])

    def buffers(self, replica: int) -> dict[str, Tensor]:
        found = {}
        for name, statistics in self._statistics[replica].items():
            found[f"{name}.running_mean"] = statistics.mean
            found[f"{name}.running_var"] = statistics.variance
            found[f"{name}.num_batches_tracked"] = torch.tensor(statistics.batches)
        return found
