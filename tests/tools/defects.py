"""The defects of the published studies, planted into our own code, one rank a process.

Run as each of two ranks by tests/check/test_defects.py; rank 0 prints a JSON line a defect: its
name and what verification makes of it. Every defect is undone before the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.image_loader import ImageLoader
from gnnhpc.check import verify
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.engines import stage as stage_module
from gnnhpc.engines.flat_gradients import Gradients
from gnnhpc.engines.native import NativeEngine, StageLinks
from gnnhpc.engines.torch_pipelining import TimedStage
from gnnhpc.ranks.environment import read_environment
from gnnhpc.spec.cli_experiment import build_experiment
from gnnhpc.tasks.task import Loss
from gnnhpc.train import optimizer

ENVIRONMENT = read_environment()
VIG: dict[str, Any] = {
    "model": {"name": "vig", "blocks": 2, "grapher_width": 8, "ffn_width": 8, "readout_width": 8},
    "data": {"name": "synthetic-cifar10", "image_size": 4, "train": 64, "test": 16},
    "batch_size": 8,
    "microbatches": 4,
    "layout": "pp2",
}
GAT: dict[str, Any] = {
    "model": {"name": "gat"},
    "data": {"name": "synthetic-citation", "nodes": 120, "edges": 400, "features": 32},
    "microbatches": 3,
    "layout": "pp2",
}


class Twin:
    """Whether rank 0 is running the twin just now, which must stay without defect."""

    running = False


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


@contextlib.contextmanager
def no_backward_communication() -> Iterator[None]:
    """Raffi 1: gradients end at the cut."""
    joined, backward = StageLinks.__init__, NativeEngine._backward

    def one_way(links: StageLinks, *args: Any, **kwargs: Any) -> None:
        joined(links, *args, **kwargs)
        links.gradients_in = links.gradients_out = None

    def only_last(engine: NativeEngine, *args: Any) -> None:
        if engine.plan.mesh.is_last:
            backward(engine, *args)

    with (
        mock.patch.object(StageLinks, "__init__", one_way),
        mock.patch.object(NativeEngine, "_backward", only_last),
    ):
        yield


@contextlib.contextmanager
def no_backward_communication_of_torch() -> Iterator[None]:
    """Raffi 1, as it came about: a second schedule switched the first stage's share off."""
    backward = TimedStage.backward_one_chunk

    def only_last(stage: TimedStage, chunk: int, *args: Any, **kwargs: Any) -> None:
        if stage.is_last:
            backward(stage, chunk, *args, **kwargs)

    with (
        mock.patch.object(TimedStage, "get_bwd_recv_ops", lambda *_: []),
        mock.patch.object(TimedStage, "get_bwd_send_ops", lambda *_: []),
        mock.patch.object(TimedStage, "backward_one_chunk", only_last),
    ):
        yield


@contextlib.contextmanager
def loss_of(change: Callable[[Loss, Tensor, MicroBatch], Tensor]) -> Iterator[None]:
    """Another loss on the ranks under test."""
    true = Loss.__call__

    def patched(loss: Loss, output: Tensor, microbatch: MicroBatch, labelled: int) -> Tensor:
        if Twin.running:
            return true(loss, output, microbatch, labelled)
        return change(loss, output, microbatch)

    with mock.patch.object(Loss, "__call__", patched):
        yield


@contextlib.contextmanager
def summed_microbatches() -> Iterator[None]:
    """Raffi 4: each micro-batch's mean, added up."""
    with loss_of(lambda loss, o, m: functional.cross_entropy(o, m.targets["train"])):
        yield


@contextlib.contextmanager
def mean_of_masked_means() -> Iterator[None]:
    """Each micro-batch's mean over its labelled rows, averaged over micro-batches."""

    def mean(loss: Loss, output: Tensor, microbatch: MicroBatch) -> Tensor:
        count = loss.task.labelled(microbatch.targets)
        summed = loss.task.summed_loss(output, microbatch.targets)
        return summed / count / GAT["microbatches"]

    with loss_of(mean):
        yield


@contextlib.contextmanager
def summed_replicas() -> Iterator[None]:
    """All-reduce without the division by the number of replicas."""
    true = Gradients.average

    def sums(gradients: Gradients) -> None:
        if gradients.flat is not None and not Twin.running:
            gradients.flat.mul_(2)
        true(gradients)

    with mock.patch.object(Gradients, "average", sums):
        yield


@contextlib.contextmanager
def gradients_left_over() -> Iterator[None]:
    """Each step adds to the gradients of the one before; the first is right."""
    kind: Any = optimizer._Adam
    true = kind.zero_grad

    def forgotten(adam: torch.optim.Optimizer, set_to_none: bool = True) -> None:
        if Twin.running:
            true(adam, set_to_none=set_to_none)

    with mock.patch.object(kind, "zero_grad", forgotten):
        yield


@contextlib.contextmanager
def mismatched_labels() -> Iterator[None]:
    """Raffi 3: each rank shuffles on its own."""
    true = ImageBatches.open

    def shuffled(batches: ImageBatches, *args: Any) -> Any:
        plan = batches.plan
        own = plan.experiment.model_copy(update={"seed": plan.experiment.seed + plan.mesh.rank})
        return true(_copy(batches, plan=dataclasses.replace(plan, experiment=own)), *args)

    with mock.patch.object(ImageBatches, "open", shuffled):
        yield


@contextlib.contextmanager
def unsharded_replicas() -> Iterator[None]:
    """Boca: every replica trains on all of the data."""
    true = ImageLoader.__init__

    def whole(loader: ImageLoader, *args: Any, **kwargs: Any) -> None:
        true(loader, *args, **kwargs | {"replicas": 1, "replica": 0})

    with mock.patch.object(ImageLoader, "__init__", whole):
        yield


@contextlib.contextmanager
def cut_in_the_wrong_place() -> Iterator[None]:
    """Raffi 2: a stage holds other layers than the layout says."""
    true = stage_module.build_stage

    def shifted(experiment: Any, outlines: Any, layers: range, timer: Any) -> Any:
        if experiment.layout.stages > 1 and layers.start > 0:
            layers = range(layers.start + 1, layers.stop)
        return true(experiment, outlines, layers, timer)

    with mock.patch("gnnhpc.train.setup.build_stage", shifted):
        yield


@contextlib.contextmanager
def uneven_last_batch() -> Iterator[None]:
    """A batch of half the rows after a whole one."""
    true = ImageBatches._batch

    def short(batches: ImageBatches, phase: Any, loaded: Any, waited_s: float) -> Batch:
        batch = true(batches, phase, loaded, waited_s)
        half = batches.rows // 2
        if loaded.step == 0 or batches.plan.mesh.layout.stages == 1:
            return batch
        return dataclasses.replace(
            batch,
            microbatches=tuple(
                MicroBatch(
                    None if whole.inputs is None else whole.inputs[:half],
                    {split: target[:half] for split, target in whole.targets.items()},
                    whole.context,
                )
                for whole in batch.microbatches
            ),
        )

    with mock.patch.object(ImageBatches, "_batch", short):
        yield


def _copy(batches: Any, **changes: Any) -> Any:
    other = object.__new__(type(batches))
    other.__dict__ = batches.__dict__ | changes
    return other


DEFECTS: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "none, vig pp2": (VIG, nothing),
    "none, vig pp2 of torch": (VIG | {"engine": "pipelining"}, nothing),
    "none, gat pp2": (GAT, nothing),
    "none, vig dp2": (VIG | {"layout": "dp2"}, nothing),
    "no backward communication": (VIG, no_backward_communication),
    "no backward communication of torch": (
        VIG | {"engine": "pipelining"},
        no_backward_communication_of_torch,
    ),
    "summed micro-batches": (VIG, summed_microbatches),
    "summed replicas": (VIG | {"layout": "dp2"}, summed_replicas),
    "mean of masked means": (GAT, mean_of_masked_means),
    "gradients left over": (VIG, gradients_left_over),
    "mismatched labels": (VIG, mismatched_labels),
    "unsharded replicas": (VIG | {"layout": "dp2"}, unsharded_replicas),
    "cut in the wrong place": (VIG, cut_in_the_wrong_place),
    "uneven last batch": (VIG, uneven_last_batch),
}


def main() -> None:
    true_twin = verify._twin

    def twin(*args: Any) -> Any:
        Twin.running = True
        try:
            return true_twin(*args)
        finally:
            Twin.running = False

    with mock.patch.object(verify, "_twin", twin):
        for name, (raw, plant) in DEFECTS.items():
            experiment = build_experiment(raw, name)
            key = f"{ENVIRONMENT.job_key}-{ENVIRONMENT.port}-{name}"
            environment = dataclasses.replace(ENVIRONMENT, port=None, job_key=key)
            with plant():
                try:
                    verdict = verify.verify_rank(experiment, environment, None)
                except GnnhpcError as error:
                    if torch.distributed.is_initialized():
                        torch.distributed.destroy_process_group()
                    print(json.dumps({"defect": name, "passed": False, "causes": [str(error)]}))
                    continue
            if verdict is not None:
                said = {
                    "defect": name,
                    "passed": verdict.passed,
                    "causes": verdict.causes,
                    "worst": verdict.worst,
                }
                print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
