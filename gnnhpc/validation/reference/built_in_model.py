"""The reference of a built-in model: its layer forms one after another in one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpecs
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.validation.reference.batches import ReferenceBatch
from gnnhpc.validation.reference.edge_lists import Activation
from gnnhpc.validation.reference.layer_forms import LayerForm
from gnnhpc.validation.reference.layer_parts import (
    ForwardPass,
    RunningStatistics,
    parameters_of_layer,
    statistics_of,
)

Array = npt.NDArray[np.float64]


class ReferenceModel(Protocol):
    """A model that computes micro-batches from given parameters and buffers."""

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


class BuiltInModel:
    """`forms` are those of the layers `specs`."""

    def __init__(
        self, experiment: Experiment, specs: LayerSpecs, forms: Sequence[LayerForm]
    ) -> None:
        self._experiment, self._specs, self._forms = experiment, specs, forms
        self._parameters: dict[str, Tensor] = {}
        self._side = round(specs[0].inputs[0] ** 0.5)
        self._statistics: list[dict[str, RunningStatistics]] = [
            {} for _ in range(experiment.layout.replicas)
        ]

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
        for spec, form in zip(self._specs, self._forms, strict=True):
            if spec.rows == "hop" and batch.layer_edges:
                here.edges = next(layer_edges)
            x = form(x, parameters_of_layer(self._parameters, spec.name), here)
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
        tensors = {name: torch.from_numpy(value) for name, value in buffers.items()}
        self._statistics[replica] = statistics_of(tensors)

    def buffers(self, replica: int) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, statistics in self._statistics[replica].items():
            found |= statistics.buffers(name)
        return found
