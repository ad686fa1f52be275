"""The reference of a model in one process, and that of a built-in one: layer form after form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnhpc.core.layer_specs import LayerSpecs
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.validation.reference.batches import ReferenceBatch
from gnnhpc.validation.reference.edge_lists import Activation, EdgeList
from gnnhpc.validation.reference.layer_forms import LayerForm
from gnnhpc.validation.reference.layer_parts import (
    ForwardPass,
    RunningStatistics,
    parameters_of_layer,
    statistics_of,
)

Array = npt.NDArray[np.float64]


class ReferenceModel:
    """A model that computes micro-batches from given parameters and buffers.

    Derived classes compute; this one has the buffers of each replica.
    """

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment
        self._buffers: list[dict[str, Tensor]] = [{} for _ in range(experiment.layout.replicas)]
        self._pending: list[dict[str, RunningStatistics]] = [{} for _ in self._buffers]
        """Statistics of the mini-batch that move once at its end, by the name of the BatchNorm."""

    def load(self, parameters: Mapping[str, Array]) -> None:
        """Take the parameters for the forward passes that follow, and forget gradients."""
        raise NotImplementedError

    def forward(self, batch: ReferenceBatch, step: int, *, training: bool) -> Sequence[Activation]:
        """The output of each layer; moves the buffers of the batch's replica in training."""
        raise NotImplementedError

    def gradients(self) -> dict[str, Array]:
        """The gradients that backward passes have added up since `load`."""
        raise NotImplementedError

    def end_minibatch(self) -> None:
        """Move the statistics that move once a mini-batch."""
        for buffers, pending in zip(self._buffers, self._pending, strict=True):
            for name, statistics in statistics_of(buffers).items():
                if name in pending:
                    statistics.pending = pending.pop(name).pending
                    statistics.move()
                    buffers.update(statistics.buffers(name))

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


class BuiltInModel(ReferenceModel):
    """`forms` are those of the layers `specs`."""

    def __init__(
        self, experiment: Experiment, specs: LayerSpecs, forms: Sequence[LayerForm]
    ) -> None:
        super().__init__(experiment)
        self._specs, self._forms = specs, forms
        self._parameters: dict[str, Tensor] = {}
        self._side = round(specs[0].inputs[0] ** 0.5)

    def load(self, parameters: Mapping[str, Array]) -> None:
        self._parameters = {
            name: torch.from_numpy(value).clone().requires_grad_()
            for name, value in parameters.items()
        }

    def forward(self, batch: ReferenceBatch, step: int, *, training: bool) -> Sequence[Activation]:
        deferred = self._experiment.batchnorm == "deferred"
        here = ForwardPass(
            *(step, self._experiment.seed, training, deferred),
            statistics_of(self._buffers[batch.replica]),
            ids=batch.nodes,
            side=self._side,
        )
        chunk = batch.context.graph
        if chunk is not None and chunk.pooling is not None:
            here.graph_of_row, here.graphs = chunk.pooling.target, chunk.pooling.rows_out
        outputs: list[Activation] = []
        x, blocks = batch.inputs, iter(chunk.blocks if chunk is not None else ())
        for spec, form in zip(self._specs, self._forms, strict=True):
            block = next(blocks) if spec.rows == "hop" else None
            if chunk is not None and block is not None:
                here.edges = EdgeList.of(chunk, block)
            x = form(x, parameters_of_layer(self._parameters, spec.name), here)
            if block is not None:
                assert isinstance(x, Tensor)
                x = x[: block.rows_out]
            outputs.append(x)
        for name, statistics in here.statistics.items():
            self._buffers[batch.replica] |= statistics.buffers(name)
            together = self._pending[batch.replica].setdefault(name, statistics)
            if together is not statistics:
                together.pending += statistics.pending
        return outputs

    def gradients(self) -> dict[str, Array]:
        return {
            name: value.grad.numpy()
            for name, value in self._parameters.items()
            if value.grad is not None
        }
