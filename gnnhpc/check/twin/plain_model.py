"""A built-in model's twin: its layers in plain torch, one after another, in float64.

In float32 the same twin tells what single precision makes of these sums, whoever adds them up.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from gnnhpc.check.twin import attention, convolutions, deep, vig
from gnnhpc.check.twin.backward_rounding import BackwardRounding
from gnnhpc.check.twin.forward_rounding import ForwardRounding, RoundedLayer
from gnnhpc.check.twin.layer import TwinLayer, move, seed_of
from gnnhpc.check.twin.optimizer_rule import Array
from gnnhpc.check.twin.pieces import Piece
from gnnhpc.check.twin.scene import Kink, RunningStatistics, Scene, SparseInput
from gnnhpc.core.layer_specs import LayerSpec, LayerSpecs
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.convolutions import Convolutions
from gnnhpc.models.deep_gcn import Deep
from gnnhpc.models.gat import Gat
from gnnhpc.models.vig.model import Vig


def plain_layer(model: object, outline: LayerSpec) -> TwinLayer | None:
    """One layer in plain torch; None for a model that has no such form, a user's own."""
    if isinstance(model, Vig):
        return vig.layer(model, outline)
    if isinstance(model, Gat):
        return attention.layer(model, outline)
    if isinstance(model, Deep):
        return deep.layer(model, outline)
    if isinstance(model, Convolutions):
        return convolutions.layer(model, outline)
    return None


class PlainModel:
    """`layers` in order; running statistics are each replica's own."""

    def __init__(
        self,
        experiment: Experiment,
        outlines: LayerSpecs,
        layers: list[TwinLayer],
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.experiment = experiment
        self.dtype = dtype
        self.frozen: frozenset[str] = frozenset()
        self.names = [outline.name for outline in outlines]
        self.layers = layers
        self._by_hop = [outline.rows == "hop" for outline in outlines]
        self.kinks: list[Kink] = []
        """Of the last forward pass in training."""
        model = experiment.model
        # Fused layers of ViG have statistics of their own.
        self._plain_means = not (isinstance(model, Vig) and model.implementation == "fused")
        self._side = round(outlines[0].inputs[0] ** 0.5)
        self._statistics = [
            {
                name: RunningStatistics(torch.zeros(n, dtype=dtype), torch.ones(n, dtype=dtype))
                for layer in layers
                for name, n in layer.norms().items()
            }
            for _ in range(experiment.layout.replicas)
        ]

    def initial(self) -> dict[str, Tensor]:
        """The values that the seed gives, in the run's precision."""
        dtype: torch.dtype = getattr(torch, self.experiment.dtype)
        values: dict[str, Tensor] = {}
        with torch.random.fork_rng(devices=[]):
            for name, layer in zip(self.names, self.layers, strict=True):
                torch.default_generator.manual_seed(seed_of(self.experiment.seed, name))
                values |= {f"{name}.{key}": v for key, v in layer.initial(dtype).items()}
        return values

    def forward(
        self,
        piece: Piece,
        parameters: Mapping[str, Tensor],
        step: int,
        *,
        training: bool,
        rounding: BackwardRounding | None = None,
    ) -> list[Tensor | SparseInput]:
        """The output of each layer, the last's last; parameters by full name, in float64."""
        scene = Scene(
            step,
            self.experiment.seed,
            training,
            self.experiment.batchnorm == "deferred",
            self._statistics[piece.replica],
            piece.graph,
            piece.ids,
            piece.pooled,
            max(map(len, piece.targets.values()), default=0),
            side=self._side,
            plain_means=self._plain_means,
            rounding=rounding,
        )
        outputs: list[Tensor | SparseInput] = []
        x = piece.inputs
        if isinstance(x, Tensor):
            x = x.to(self.dtype)
        else:
            x = dataclasses.replace(x, value=x.value.to(self.dtype))
        blocks = iter(piece.sampled)
        for name, layer, by_hop in zip(self.names, self.layers, self._by_hop, strict=True):
            if by_hop and piece.sampled:
                scene.graph = next(blocks)
            own = {
                key.removeprefix(f"{name}."): value
                for key, value in parameters.items()
                if key.startswith(f"{name}.")
            }
            x = layer.forward(x, own, scene)
            outputs.append(x)
        self.kinks = scene.kinks
        return outputs

    def copied(self) -> PlainModel:
        """Another of the same layers, with statistics of its own."""
        other = copy.copy(self)
        other._statistics = copy.deepcopy(self._statistics)
        return other

    def rounded(self, draw: int) -> PlainModel:
        """A copy with every layer's output off by one rounding."""
        rounding = ForwardRounding(draw)
        other = self.copied()
        other.layers = [RoundedLayer(layer, rounding) for layer in self.layers]
        return other

    def end_minibatch(self) -> None:
        for replica in self._statistics:
            for statistics in replica.values():
                move(statistics)

    def average_statistics(self) -> None:
        """What an evaluation does first: every replica goes on with the mean over replicas."""
        for name in self._statistics[0]:
            each = [replica[name] for replica in self._statistics]
            mean = torch.stack([s.mean for s in each]).mean(0)
            variance = torch.stack([s.variance for s in each]).mean(0)
            for statistics in each:
                statistics.mean, statistics.variance = mean, variance

    def restore(
        self, replica: int, state: Mapping[str, Array], _kinds: Mapping[str, torch.dtype]
    ) -> None:
        """Take one replica's running statistics from what a run holds."""
        for name, statistics in self._statistics[replica].items():
            statistics.mean = torch.from_numpy(state[f"{name}.running_mean"]).to(self.dtype)
            statistics.variance = torch.from_numpy(state[f"{name}.running_var"]).to(self.dtype)
            statistics.batches = int(state[f"{name}.num_batches_tracked"])

    def buffers(self, replica: int) -> dict[str, Tensor]:
        """Running statistics under torch's names."""
        found = {}
        for name, statistics in self._statistics[replica].items():
            found[f"{name}.running_mean"] = statistics.mean
            found[f"{name}.running_var"] = statistics.variance
            found[f"{name}.num_batches_tracked"] = torch.tensor(statistics.batches)
        return found
