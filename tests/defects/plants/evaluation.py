"""BatchNorm and evaluation mode."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gnnhpc.engines.native import ForwardOnly
from gnnhpc.engines.stage import Stage
from gnnhpc.kernels.vig_torch import Moved, Statistics
from gnnhpc.models.batchnorm import BatchNorm
from gnnhpc.models.vig import fused
from gnnhpc.tasks.classification import Classification, NodeClassification
from gnnhpc.training.loop import TrainingLoop
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import Steps, around, rank, replace, statistics_moved

KIND = "BatchNorm and evaluation"
defect = functools.partial(planted, kind=KIND)


@defect("a stage that evaluates in training mode", setting=settings.VIG)
def training_mode() -> None:
    around(Stage, "eval", lambda true, stage: stage.train() if rank() == 1 else true(stage))


@defect("a stage that trains in evaluation mode", setting=settings.VIG)
def evaluation_mode() -> None:
    def stays(true: Any, stage: Stage, mode: bool = True) -> Stage:
        result: Stage = true(stage, mode and rank() != 1)
        return result

    around(Stage, "train", stays)


@defect("training goes on in evaluation mode after an evaluation", setting=settings.VIG)
def stays_in_evaluation() -> None:
    def never_back(true: Any, trainer: Trainer) -> None:
        true(trainer)
        if rank() == 0:
            trainer.stage.eval()

    around(Trainer, "_evaluate", never_back)


@defect("BatchNorm's statistics wrong in evaluation", setting=settings.VIG)
def wrong_statistics() -> None:
    def wider(true: Any, trainer: Trainer) -> None:
        true(trainer)
        for module in trainer.stage.modules():
            if isinstance(module, BatchNorm):
                module.running_var.mul_(1.5)

    around(Trainer, "_average_running_statistics", wider)


@defect("running variance without Bessel's correction", setting=settings.VIG)
def biased() -> None:
    around(
        BatchNorm,
        "_move",
        lambda true, norm, mean, variance, rows: true(
            norm, mean, variance * ((rows - 1) / rows), rows
        ),
    )

    def change(old: Statistics, new: Statistics, momentum: float, rows: int) -> None:
        for before, after in ((old[1], new[1]), (old[3], new[3])):
            after.sub_((after - before * (1 - momentum)) / rows)

    statistics_moved(change)


@defect("running statistics that move too slowly", setting=settings.VIG)
def slow() -> None:
    def slower(true: Any, norm: BatchNorm, *args: Any, **kwargs: Any) -> None:
        true(norm, *args, **kwargs)
        norm.momentum = 0.01

    around(BatchNorm, "__init__", slower)


@defect("running statistics that stand still, later in the run", setting=settings.VIG)
def frozen_late() -> None:
    steps = Steps()
    around(BatchNorm, "_move", lambda true, *args: None if steps.late else true(*args))

    kept: dict[int, Moved] = {}

    def copies(true: Any, call: Any, rows: int) -> Moved | None:
        moved: Moved | None = true(call, rows)
        if moved is None or not steps.late:
            return moved
        first, second = moved.batches
        copied = Statistics._make(each.clone() for each in moved.statistics)
        # The same ones each time that a layer is asked, as a call of several looks again.
        own = Moved(copied, (first.clone(), second.clone()), moved.momentum)
        return kept.setdefault(id(moved.statistics[0]), own)

    around(fused._Call, "moved", copies)


@defect("running statistics not averaged over replicas", setting=settings.VIG_REPLICAS)
def not_averaged() -> None:
    replace(Trainer, "_average_running_statistics", lambda trainer: None)


@defect("BatchNorm with another epsilon", setting=settings.VIG)
def epsilon() -> None:
    def larger(true: Any, norm: BatchNorm, *args: Any, **kwargs: Any) -> None:
        true(norm, *args, **kwargs)
        norm.eps = 1e-3

    around(BatchNorm, "__init__", larger)


@defect("the first micro-batch's outputs for all in evaluation", setting=settings.VIG)
def first_for_all() -> None:
    def same(true: Any, engine: ForwardOnly, batch: Any) -> Sequence[Tensor]:
        outputs = true(engine, batch)
        return [outputs[0]] * len(outputs) if outputs else outputs

    around(ForwardOnly, "run", same)


@defect("evaluation's outputs wrong, later in the run", setting=settings.VIG)
def wrong_late() -> None:
    steps = Steps()

    def last_first(true: Any, engine: ForwardOnly, batch: Any) -> Sequence[Tensor]:
        outputs = true(engine, batch)
        return outputs[::-1] if steps.late else outputs

    around(ForwardOnly, "run", last_first)


@defect("evaluation that leaves its last micro-batch's labels out", setting=settings.GAT)
def validation_for_test() -> None:
    """As PyG's example: the test index is the validation mask."""

    def validation(
        true: Any, task: NodeClassification, phase: Any, outputs: Any, batch: Any
    ) -> Any:
        tally = true(task, phase, outputs, batch)
        if phase == "test":
            tally["accuracy"] = tally["test_accuracy"] = tally["val_accuracy"]
        return tally

    around(NodeClassification, "tally", validation)


@defect("accuracy that counts every row twice where it is right", setting=settings.VIG)
def flattering() -> None:
    def better(true: Any, task: Classification, phase: Any, outputs: Any, batch: Any) -> Any:
        tally = true(task, phase, outputs, batch)
        right, count = tally["accuracy"]
        tally["accuracy"] = (min(count, 2 * right + 1), count)
        return tally

    around(Classification, "tally", better)


@defect("evaluation that trains", setting=settings.VIG)
def trains() -> None:
    """A parameter moves a little in each evaluation."""

    def moved(true: Any, engine: ForwardOnly, batch: Any) -> Any:
        outputs = true(engine, batch)
        with torch.no_grad():
            for parameter in engine.plan.stage.parameters():
                parameter.mul_(1.001)
        return outputs

    around(ForwardOnly, "run", moved)


def _in_first_evaluation(of: int, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Of a run, not of its self-checks: `change` what one rank's stage holds, and put it back."""
    changes = [False]

    def evaluate(true: Any, trainer: Trainer) -> None:
        first = trainer.test_steps_done == 0 and trainer.observer.watch is not None  # type: ignore[attr-defined]
        changes[0] = first and rank() == of
        true(trainer)
        changes[0] = False

    def run(true: Any, only: ForwardOnly, batch: Any) -> Any:
        if not changes[0]:
            return true(only, batch)
        stage = only.plan.stage
        held = dict([*stage.named_parameters(), *stage.named_buffers()])
        now = {name: tensor.detach().clone() for name, tensor in held.items()}
        with torch.no_grad():
            change(held)
            found = true(only, batch)
            for name, tensor in held.items():
                tensor.copy_(now[name])
        return found

    around(Trainer, "_evaluate", evaluate)
    around(ForwardOnly, "run", run)


@defect("a stage's parameters of the step before in an evaluation in mid-run", setting=settings.VIG)
def parameters_before() -> None:
    kept: dict[str, Tensor] = {}

    def step(true: Any, trainer: Trainer, *args: Any) -> Any:
        kept.update({n: p.detach().clone() for n, p in trainer.stage.named_parameters()})
        return true(trainer, *args)

    def change(held: dict[str, Tensor]) -> None:
        for name, value in kept.items():
            held[name].copy_(value)

    around(Trainer, "_train_step", step)
    _in_first_evaluation(0, change)


@defect("initial running statistics in an evaluation in mid-run", setting=settings.VIG_ZBV)
def initial_statistics() -> None:
    def change(held: dict[str, Tensor]) -> None:
        for name, tensor in held.items():
            if name.endswith(("running_mean", "running_var")):
                tensor.fill_(float(name.endswith("var")))

    _in_first_evaluation(1, change)


@defect("a micro-batch evaluated to the outputs of the mini-batch before", setting=settings.VIG)
def outputs_of_before() -> None:
    """As of a kernel's workspace that is used again."""
    kept: dict[tuple[int, torch.Size], Tensor] = {}

    def stale(true: Any, stage: Stage, x: Any, context: Any) -> Tensor:
        output: Tensor = true(stage, x, context)
        if stage.training or context.microbatch != 2:
            return output
        before = kept.get((id(stage), output.shape))
        kept[id(stage), output.shape] = output.clone()
        return output if before is None or context.step == 0 else before

    around(Stage, "forward", stale)
