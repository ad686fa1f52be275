"""Layers whose errors are kept, so that no rank waits for one whose layer fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from gnnhpc.core.layer_specs import LayerSpec, row_changes
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context
from gnnhpc.validation.steps.comparable_layers import in_words
from gnnhpc.validation.verdicts import LayerFailedError


class GuardedLayers:
    """Lets the layers of a float64 stage give zeros where their forward raises an error."""

    def __init__(self, stage: Stage, device: torch.device) -> None:
        self._failed, self._device = "", device
        for part in stage.virtual_stages:
            for number, layer in enumerate(part.layers):
                changes = part.row_changes[0] + row_changes(part.specs[: number + 1])
                known = (part.specs[number], layer, changes, layer.forward)
                layer.forward = functools.partial(self._forward, *known)

    def check(self, rank: int) -> None:
        """Raises LayerFailedError for the first layer that failed."""
        if self._failed:
            raise LayerFailedError(f"{self._failed} on rank {rank}")

    def _forward(
        self,
        spec: LayerSpec,
        layer: nn.Module,
        changes: int,
        forward: Callable[[Any, Context], Any],
        x: Any,
        context: Context,
    ) -> Any:
        try:
            return forward(x, context)
        # A user's code may fail in any way.
        except Exception as error:
            # Torch ends a recomputation by an error of its own.
            if type(error).__module__ == "torch.utils.checkpoint":
                raise
            self._failed = self._failed or f"layer {spec.name} fails: {in_words(error)}"
        rows = len(x)
        if spec.rows != "same":
            of_chunk = context.chunk.rows
            rows = of_chunk[min(changes, len(of_chunk) - 1)]
        zeros = torch.zeros(rows, *spec.shape, dtype=torch.float64, device=self._device)
        # Backward reaches the input and all parameters.
        reached = [*([x] if isinstance(x, Tensor) else []), *layer.parameters()]
        return zeros + sum(0.0 * each.sum() for each in reached)
