"""The dense products of a training step alone: no form of the layers can take less."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.drawn_step import drawn_step
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.layers import convolution_layers
from gnnhpc.models.layers import linear as linear_file


def products_alone(experiment: Experiment) -> Callable[[], float]:
    """One step's products a turn, forward and backward, by torch, of matrices already there.

    Their sizes are those of our layers' first step.
    """
    seen: list[tuple[torch.Size, torch.Size, bool]] = []

    def noted(true: Any) -> Any:
        def noting(x: Tensor, weight: Tensor, *others: Any) -> Any:
            seen.append((x.shape, weight.shape, x.requires_grad))
            return true(x, weight, *others)

        return noting

    step = drawn_step(experiment)
    linear = noted(linear_file.linear)
    with (
        mock.patch.object(convolution_layers, "linear", linear),
        mock.patch.object(linear_file, "linear", linear),
    ):
        step()
    products = [
        (torch.randn(of_x), torch.randn(of_weight), torch.randn(of_x[0], of_weight[0]), needs)
        for of_x, of_weight, needs in seen
    ]

    def turn() -> float:
        began = time.perf_counter()
        for x, weight, upstream, needs in products:
            torch.mm(x, weight.t())
            torch.mm(upstream.t(), x)
            if needs:
                torch.mm(upstream, weight)
        return time.perf_counter() - began

    return turn
