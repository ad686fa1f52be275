"""Watches that dropout of features drops what its mask says: of this step, layer, rate and seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnhpc.check.plain.masks import plain_weights
from gnnhpc.check.watches.findings import Findings
from gnnhpc.engines.stage import Stage
from gnnhpc.graphs.halves import computed
from gnnhpc.graphs.indexed_rows import IndexedRows
from gnnhpc.graphs.sparse_rows import SparseRows
from gnnhpc.kernels.dropped_rows import DroppedRows
from gnnhpc.models.context import Context
from gnnhpc.models.convolutions.activations import ReluDropout
from gnnhpc.models.dropout import Dropout
from gnnhpc.models.recomputation import is_recomputing
from gnnhpc.models.sparse_linear import Features
from gnnhpc.spec.experiment import Experiment

ELEMENTS = 512
"""Of a layer's first micro-batch that are kept, spread evenly."""
_STEPS_BACK = 8


@dataclass(frozen=True)
class _Kept:
    layer: Dropout | ReluDropout
    given: Tensor
    gave: Tensor
    entries: Tensor
    """Numbers in the whole graph, int64, negative for padding."""


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
            given, entries = _elements(x, context)
            gave, _ = _elements(output, context)
            self._kept.append(_Kept(layer, given, gave, entries))

    def _cause(self, kept: _Kept, step: int, rate: float) -> str | None:
        entries = kept.entries.cpu().numpy()
        told = entries >= 0
        given, gave = (t.cpu().double().numpy()[told] for t in (kept.given, kept.gave))
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


def _elements(x: Features, context: Context) -> tuple[Tensor, Tensor]:
    """Some elements of features, and their numbers in the whole graph."""
    if isinstance(x, SparseRows):
        stride = max(1, -(-len(x.values) // ELEMENTS))
        return x.values[::stride].detach().clone(), x.entries[::stride]
    count, width = len(x) * x.shape[1], x.shape[1]
    device = context.chunk.nodes.device
    places = torch.arange(0, count, max(1, -(-count // ELEMENTS)), device=device)
    rows, columns = places // width, places % width
    nodes = context.chunk.nodes[rows]
    numbers = torch.where(nodes >= 0, nodes * width + columns, -1)
    # The whole of these would be as large as all features.
    if isinstance(x, IndexedRows):
        return computed(x.features[x.nodes[rows], columns]), numbers
    if isinstance(x, DroppedRows):
        found = computed(x.x[rows if x.at is None else x.at[rows], columns])
        if x.mask is None:
            return found, numbers
        drawn = (x.rows[rows] * width + columns).clamp(min=0)
        return found * x.mask.weights(drawn, found.dtype), numbers
    return x.detach()[rows, columns], numbers
