"""Forwards that are computed again are held against what the first ones gave."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gnnhpc.check.watches.findings import Findings
from gnnhpc.check.watches.recomputed_outputs import NAME, TOLERANCE, RecomputedOutputs
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.engines.stage import Stage
from gnnhpc.models.context import Context
from gnnhpc.models.layers.batchnorm import is_recomputing


class Scaled(nn.Linear):
    """Forwards that are computed again, of one micro-batch, are `off` larger."""

    def __init__(self, off: float, masked: int) -> None:
        super().__init__(30, 30)
        self.off, self.masked = off, masked

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        assert context is not None
        wrong = is_recomputing() and context.microbatch == 1
        scaled: Tensor = super().forward(x) * (1 + self.off if wrong else 1)
        return scaled.masked_fill(torch.arange(30) == self.masked, -torch.inf)


def found(
    off: float, *, training: bool = True, masked: int = -1, evaluates: bool = False
) -> Findings:
    """In a step of three micro-batches, the last of which is not computed again."""
    findings = Findings()
    stage = Stage([LayerSpec("only", (30,), (30,))], [Scaled(off, masked)], timer=None)
    stage.recomputed = range(2)
    watch = RecomputedOutputs(findings, TOLERANCE["float32"])
    watch.attach(stage)
    watch.begin_step()
    stage.train(training)
    stage.layers[-1].train(training and not evaluates)
    outputs = [stage(torch.randn(200, 30), Context(microbatch=m)) for m in range(3)]
    for output in outputs:
        output.clamp(min=-1e6).square().sum().backward()
    watch.after_step(5)
    return findings


def test_other_outputs_are_found() -> None:
    wrong = found(1e-4)
    (finding,) = wrong.kept
    assert (finding.check, finding.step) == (NAME, 5)
    assert "micro-batch 1 of part 0, computed again, has outputs that are" in finding.cause
    assert wrong.looks[NAME] == 1


def test_a_layer_that_stays_in_evaluation_mode_is_looked_at() -> None:
    assert len(found(1e-4, evaluates=True).kept) == 1


def test_infinite_numbers_hide_no_others() -> None:
    assert len(found(1e-4, masked=3).kept) == 1
    assert found(0.0, masked=3).kept == []


def test_the_same_outputs_and_rounding_are_not() -> None:
    for off in (0.0, 1e-6):
        assert found(off).kept == []
        assert found(off).looks[NAME] == 1
    assert found(1.0, training=False) == Findings()


def test_numbers_that_are_none_are_found_where_the_first_were_some() -> None:
    assert len(found(float("nan")).kept) == 1
    assert len(found(float("inf")).kept) == 1
