"""Watches that dropout of features drops what its mask says: of this step, layer, rate and seed."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnhpc.check.plain.masks import plain_weights
from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.stage_traffic import RUN
from gnnhpc.engines.stage import Stage
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.graphs.halves import computed
from gnnhpc.graphs.indexed_rows import IndexedRows
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels.dropped_rows import DroppedRows
from gnnhpc.models.context import Context
from gnnhpc.models.layers.activations import ReluDropout
from gnnhpc.models.layers.batchnorm import is_recomputing
from gnnhpc.models.layers.dropout import Dropout
from gnnhpc.models.layers.linear import Features

ELEMENTS = 512
"""Of a layer's first micro-batch that are kept, in runs that are spread evenly."""
_STEPS_BACK = 8


class Elements(NamedTuple):
    """Some of a layer's features, copied within a step; what they are is worked out after it."""

    values: Tensor
    nodes: Tensor | None
    """int64: whose they are, negative for padding; None where `columns` are their numbers."""
    columns: Tensor
    """int64"""
    width: int

    def numbers(self) -> Tensor:
        """int64, in the whole graph, negative for padding."""
        if self.nodes is None:
            return self.columns
        return torch.where(self.nodes >= 0, self.nodes * self.width + self.columns, -1)


@dataclass(frozen=True)
class _Kept:
    layer: Dropout | ReluDropout
    given: Elements
    gave: Tensor
    """The values in the same places."""


@dataclass
class DropoutWatch:
    """Of our own layers; masks of attention coefficients never leave the kernel."""

    experiment: Experiment
    stage: Stage
    findings: Findings
    _kept: list[_Kept] = field(default_factory=list)
    _handles: list[Any] = field(default_factory=list)

    def attach(self) -> None:
        self.detach()
        self._kept = []
        for module in self.stage.layers:
            if isinstance(module, Dropout | ReluDropout):
                self._handles.append(module.register_forward_hook(self._keep))

    def detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def after_step(self, step: int) -> None:
        for kept in self._kept:
            rate = getattr(self.experiment.model.loaded, "dropout", kept.layer.p)
            if rate == 0:
                continue
            self.findings.looks["dropout masks"] += 1
            cause = self._cause(kept, step, rate)
            if cause is not None:
                self.findings.add("dropout masks", "train", step, f"{kept.layer.name} {cause}")

    def _keep(self, layer: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        """Inside the step: copies of few elements."""
        x, context = arguments
        if (
            context.microbatch == 0
            and not is_recomputing()
            and isinstance(layer, Dropout | ReluDropout)
        ):
            self._kept.append(
                _Kept(layer, _elements(x, context), _values(output, context.chunk.nodes.device))
            )

    def _cause(self, kept: _Kept, step: int, rate: float) -> str | None:
        entries = kept.given.numbers().cpu().numpy()
        told = entries >= 0
        values = kept.given.values, kept.gave
        given, gave = (each.cpu().double().numpy()[told] for each in values)
        if isinstance(kept.layer, ReluDropout):
            given = np.maximum(given, 0.0)
        seed, name = self.experiment.seed, kept.layer.name

        def fits(of_step: int) -> bool:
            weights = plain_weights(seed, of_step, name, rate, entries[told])
            return self._fit(given * weights, gave)

        if fits(step):
            return None
        if np.array_equal(given, gave):
            return "dropped nothing"
        for other in [*range(step - 1, max(step - 1 - _STEPS_BACK, -1), -1), 0]:
            if other != step and fits(other):
                return f"used the mask of step {other} again"
        return f"did not use the mask of its step, seed, name and rate {rate:g}"

    def _fit(self, wanted: npt.NDArray[np.float64], found: npt.NDArray[np.float64]) -> bool:
        """But for rounding the factor and the product."""
        unit = float(np.finfo(self.experiment.dtype).eps)
        return bool((np.abs(found - wanted) <= 2 * unit * np.abs(wanted)).all())


def _elements(x: Features, context: Context) -> Elements:
    nodes = context.chunk.nodes
    rows, columns = _chosen(x, nodes.device)
    values, width = _values(x, nodes.device), x.shape[1]
    if isinstance(x, SparseRows):
        return Elements(values, None, x.entries[rows], width)
    return Elements(values, nodes[rows], columns, width)


def _chosen(x: Features, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the elements that are kept; of sparse features, of what they store."""
    if isinstance(x, SparseRows):
        return _places(len(x.values), 1, device)
    return _places(len(x), x.shape[1], device)


def _values(x: Features, device: torch.device) -> Tensor:
    rows, columns = _chosen(x, device)
    if isinstance(x, SparseRows):
        return x.values.detach()[rows]
    # The whole of these would be as large as all features.
    if isinstance(x, IndexedRows):
        return computed(x.features[x.nodes[rows], columns])
    if isinstance(x, DroppedRows):
        found = computed(x.x[rows if x.at is None else x.at[rows], columns])
        if x.mask is None:
            return found
        drawn = (x.rows[rows] * x.shape[1] + columns).clamp(min=0)
        return found * x.mask.weights(drawn, found.dtype)
    return x.detach()[rows, columns]


@functools.lru_cache(maxsize=64)
def _places(rows: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows and columns of the elements that are kept of so many."""
    count = rows * width
    runs = ELEMENTS // RUN
    apart = max(RUN, count // runs)
    starts = torch.arange(0, min(count, runs * apart), apart, device=device)
    places = (starts[:, None] + torch.arange(RUN, device=device)).reshape(-1)
    places = places[places < count]
    return places // width, places % width
