"""Normal runs on real ranks: healthy ones stay clean, and each watch names a planted defect."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from tests.tools.cells import Ran, gat, manifest_of, run, vig
from tests.tools.forked import Plant

pytestmark = pytest.mark.distributed

SGD = {"name": "sgd", "lr": 1e-4, "weight_decay": 0.01}
HALO = {"chunks": "halo", "microbatches": 2}
LATE = {"save_every": 2, "test_every": 3}
HEALTHY: dict[str, Experiment] = {
    "vig": vig(),
    "vig of odd sizes": vig(batch_size=6, microbatches=3, optimizer=SGD, train_steps=23),
    "vig pp2 of torch": vig(layout="pp2", engine="pipelining"),
    "vig dp2": vig(layout="dp2", batchnorm="deferred", **LATE),
    "vig dp2-pp2": vig(layout="dp2-pp2", schedule="1f1b"),
    "vig dp2-pp2 of torch": vig(layout="dp2-pp2", engine="pipelining", schedule="1f1b"),
    "vig in float64": vig(layout="pp2", dtype="float64"),
    "gat": gat(train_steps=20),
    "gat in clusters": gat(chunks="clustered"),
    "gat pp2 with halo": gat(layout="pp2", **HALO),
    "gat pp2 of torch": gat(layout="pp2", engine="pipelining", **HALO),
    "gat dp2": gat(layout="dp2", **HALO, **LATE),
    "gat dp2-pp2 in float64": gat(layout="dp2-pp2", dtype="float64", **HALO),
}
WATCHED = {
    *("inputs", "targets", "outputs", "metrics", "raw loss", "loss gradient", "contexts"),
    *("modes", "initial values", "optimizer", "evaluation", "replica parameters", "statistics"),
}


def judged(ran: Ran) -> dict[str, Check]:
    assert ran.attempt.result.exists(), "\n".join(ran.err)
    return {check.name: check for check in ran.result.audit}


@pytest.mark.quick("vig dp2-pp2", "gat", "gat pp2 of torch")
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_is_looked_at_and_clean(name: str, tmp_path: Path) -> None:
    experiment = HEALTHY[name]
    ran = run(tmp_path, manifest_of(tmp_path, experiment)[0])
    found = judged(ran)
    assert [check for check in found.values() if check.verdict == "invalid"] == []
    wanted = WATCHED | ({"order"} if experiment.batch_size else {"chunks"})
    wanted |= {"cuts"} if experiment.layout.stages > 1 else set()
    assert {n: found[n].verdict for n in wanted} == dict.fromkeys(wanted, "ok")


@functools.cache
def rank() -> int:
    return int(os.environ["RANK"])


def labels_rolled() -> None:
    from gnnhpc.batches.image_loader import ImageLoader

    true = ImageLoader._fill

    def fill(loader: ImageLoader, step: int, buffers: Any) -> Any:
        loaded = true(loader, step, buffers)
        buffers.labels.numpy()[:] = np.roll(buffers.labels.numpy(), 1)
        return loaded

    ImageLoader._fill = fill  # type: ignore[method-assign]


def stale_buffer() -> None:
    """The double buffer is handed out before it is filled again."""
    from gnnhpc.batches.image_loader import ImageLoader

    true = ImageLoader._fill

    def fill(loader: ImageLoader, step: int, buffers: Any) -> Any:
        old = None if buffers.pixels is None else buffers.pixels.clone()
        loaded = true(loader, step, buffers)
        if old is not None and step > 1:
            buffers.pixels.copy_(old)
        return loaded

    ImageLoader._fill = fill  # type: ignore[method-assign]


def inputs_scaled() -> None:
    from gnnhpc.data.images import Images

    true = Images.batch_into

    def scaled(images: Images, indices: Any, out: Any) -> None:
        true(images, indices, out)
        out *= 2

    Images.batch_into = scaled  # type: ignore[method-assign]


def never_reshuffled() -> None:
    from gnnhpc.batches import image_loader

    true = image_loader.permutation
    image_loader.permutation = lambda samples, seed, epoch: true(samples, seed, 0)  # type: ignore[assignment]


def halo_one_hop_short() -> None:
    from gnnhpc.graphs import chunks

    true = chunks._zones

    def short(edges: Any, own: Any, hops: int) -> Any:
        zones = true(edges, own, hops)
        zones[-1] = zones[-1][:0]
        return zones

    block = chunks._block

    def inside(edges: Any, nodes: Any, rows_out: int) -> Any:
        held = np.zeros(len(edges.indptr) - 1, dtype=np.int64)
        held[nodes[nodes >= 0]] = 1
        return block(edges.within(held), nodes, rows_out)

    chunks._zones, chunks._block = short, inside


def nodes_left_out() -> None:
    """The last node of each chunk belongs to no chunk."""
    from gnnhpc.graphs import chunks

    true = chunks._chunk

    def fewer(*arguments: Any) -> Any:
        chunk = true(*arguments)
        return dataclasses.replace(chunk, own=chunk.own - 1)

    chunks._chunk = fewer


def other_mask() -> None:
    """Trains on the nodes that are to validate."""
    from gnnhpc.batches import chunk_batches

    targets = chunk_batches.ChunkBatches._targets

    def wrong(chunk: Any, phase: Any) -> Any:
        found = targets(chunk, phase)
        return found | {"train": chunk.targets["val"]} if phase == "train" else found

    chunk_batches.ChunkBatches._targets = staticmethod(wrong)  # type: ignore[method-assign]


def other_seed() -> None:
    from gnnhpc.engines import stage

    true = stage.layer_seed
    stage.layer_seed = lambda seed, name: true(seed + rank(), name)


def step_skipped() -> None:
    from gnnhpc.train import optimizer

    if rank() == 1:
        optimizer._Adam.step = lambda self: None  # type: ignore[attr-defined]


def faster_replica() -> None:
    from gnnhpc.train import optimizer

    true = optimizer._Adam.step  # type: ignore[attr-defined]

    def step(self: torch.optim.Optimizer) -> None:
        self.param_groups[0]["lr"] = 1e-2
        true(self)

    if rank() == 1:
        optimizer._Adam.step = step  # type: ignore[attr-defined]


def parameters_moved_apart() -> None:
    """After the last step that is looked at closely before a checkpoint."""
    from gnnhpc.train.loop import Trainer

    true = Trainer._train_step

    def moved(trainer: Trainer, step: int, batch: Any) -> bool:
        stop = true(trainer, step, batch)
        if rank() == 1 and step == 1:
            with torch.no_grad():
                next(trainer.stage.parameters()).view(-1)[0].mul_(1 + 1e-6)
        return stop

    Trainer._train_step = moved  # type: ignore[method-assign]


def gradients_kept() -> None:
    from gnnhpc.train import optimizer

    optimizer._Adam.zero_grad = lambda self, set_to_none=True: None  # type: ignore[attr-defined]


def gradient_of_one_replica() -> None:
    from gnnhpc.engines.flat_gradients import Gradients

    def first_only(gradients: Gradients) -> None:
        (flat,) = gradients.flats
        torch.distributed.broadcast(flat, 0, group=gradients.mesh.replicas)
        gradients.reductions += 1

    Gradients.average = first_only  # type: ignore[method-assign]


def stale_activation() -> None:
    from gnnhpc.engines.transfer import Sender

    true = Sender.send
    kept: dict[int, Tensor] = {}

    def one_late(sender: Sender, tensor: Tensor) -> None:
        late = kept.get(id(sender), tensor)
        kept[id(sender)] = tensor.clone()
        true(sender, late)

    Sender.send = one_late  # type: ignore[method-assign]


def evaluates_in_training_mode() -> None:
    from gnnhpc.engines.stage import Stage

    if rank() == 1:
        Stage.eval = lambda self: self  # type: ignore[method-assign]


def trains_in_evaluation_mode() -> None:
    from gnnhpc.engines.stage import Stage

    true = Stage.train

    def never(stage: Stage, mode: bool = True) -> Stage:
        return true(stage, False)

    Stage.train = never  # type: ignore[method-assign]


def statistics_not_averaged() -> None:
    from gnnhpc.train.loop import Trainer

    Trainer._average_running_statistics = lambda self: None  # type: ignore[method-assign]


def dropout_in_evaluation() -> None:
    from gnnhpc.models.layers import dropout

    true = dropout.active_mask
    dropout.active_mask = lambda name, p, training, context: true(name, p, True, context)


def masks_used_twice() -> None:
    """From the third step on, every step has the masks of the second."""
    from gnnhpc.models.layers import dropout

    true = dropout.layer_mask
    dropout.layer_mask = lambda seed, step, name, p: true(seed, min(step, 1), name, p)


def evaluation_that_changes() -> None:
    from gnnhpc.engines.native import ForwardOnly

    true = ForwardOnly.run

    def changes(engine: ForwardOnly, batch: Any) -> Sequence[Tensor]:
        with torch.no_grad():
            for buffer in engine.plan.stage.buffers():
                if buffer.is_floating_point():
                    buffer.mul_(1.01)
        return true(engine, batch)

    ForwardOnly.run = changes  # type: ignore[method-assign]


def flattering_accuracy() -> None:
    from gnnhpc.tasks.classification import Classification

    true = Classification.tally

    def better(task: Classification, phase: Any, outputs: Any, batch: Any) -> Any:
        tally = true(task, phase, outputs, batch)
        return tally | {"accuracy": (tally["accuracy"][0] + 1, tally["accuracy"][1])}

    Classification.tally = better  # type: ignore[method-assign]


PP2 = vig(layout="pp2")
DP2 = vig(layout="dp2", microbatches=2)
TORCH = vig(layout="dp2-pp2", engine="pipelining", microbatches=2)
PLANTED: list[tuple[Experiment, Callable[[], None], str, str]] = [
    (PP2, labels_rolled, "targets", "they are shifted by 1 against the inputs"),
    (DP2, stale_buffer, "inputs", "they are those of two steps before"),
    (
        vig(),
        inputs_scaled,
        "inputs",
        "8 of 8 images differ from the raw data: they are scaled by 2",
    ),
    (vig(train_steps=10), never_reshuffled, "order", "epoch 1 has the order of epoch 0"),
    (gat(layout="pp2", **HALO), halo_one_hop_short, "chunks", "that use neighbours lacks"),
    (gat(layout="dp2", **HALO), nodes_left_out, "samples", "4 samples were not used in an epoch"),
    (gat(layout="pp2"), other_mask, "targets", "they are of the val split"),
    (DP2, other_seed, "replica parameters", "at the first step"),
    (PP2, step_skipped, "optimizer", "did not move: the optimizer's step was skipped"),
    (TORCH, step_skipped, "optimizer", "did not move: the optimizer's step was skipped"),
    (DP2, faster_replica, "optimizer", "moved 10 times as far as learning rate 0.001 gives"),
    (TORCH, faster_replica, "replica parameters", "differ between replicas 0 and 1"),
    (DP2, parameters_moved_apart, "replica parameters", "at the last step"),
    (gat(layout="pp2", **HALO), gradients_kept, "optimizer", "gradients of the step before"),
    (DP2, gradient_of_one_replica, "gradients used", "the mean of what 2 replicas' backwards gave"),
    (PP2, stale_activation, "cuts", "of micro-batches [1, 2, 3]: it is that of [0, 1, 2]"),
    (PP2, evaluates_in_training_mode, "modes", "the stage is not in evaluation mode"),
    (vig(), trains_in_evaluation_mode, "modes", "the stage is not in training mode"),
    (DP2, statistics_not_averaged, "statistics", "is not the mean of those of 2 replicas"),
    (gat(layout="pp2", **HALO), dropout_in_evaluation, "evaluation", "dropout is active"),
    (gat(layout="pp2", **HALO), masks_used_twice, "dropout masks", "used the mask of step 1 again"),
    (PP2, evaluation_that_changes, "evaluation", "evaluation changed"),
    (vig(), flattering_accuracy, "metrics", "of the outputs and the raw labels"),
]


@pytest.mark.quick(
    "faster_replica dp2-10",
    "labels_rolled pp2-0",
    "other_mask pp2-6",
    "step_skipped pp2-8",
    "trains_in_evaluation_mode seq-17",
)
@pytest.mark.parametrize(
    ("experiment", "plant", "check", "words"),
    [
        pytest.param(*planted, id=f"{planted[1].__name__} {planted[0].layout}-{n}")
        for n, planted in enumerate(PLANTED)
    ],
)
def test_a_defect_is_named(
    experiment: Experiment, plant: Plant, check: str, words: str, tmp_path: Path
) -> None:
    ran = run(tmp_path, manifest_of(tmp_path, experiment)[0], plant=plant)
    found = judged(ran)[check]
    assert found.verdict == "invalid", ran.result.audit
    assert words in found.detail, found.detail
    assert not ran.result.valid


def test_no_checkpoint_is_written_of_replicas_that_differ(tmp_path: Path) -> None:
    """It would hold one replica's parameters, and a resume would hide that they differed."""
    cell = manifest_of(tmp_path, DP2.model_copy(update={"save_every": 3}))[0]
    ran = run(tmp_path, cell, plant=parameters_moved_apart)
    assert ran.result.status == "failed"
    assert ran.result.failure is not None
    assert "no checkpoint is written of a run that is wrong" in ran.result.failure.error
    assert "differ between replicas 0 and 1" in ran.result.failure.error


def interrupted_and_unshuffled() -> None:
    """A signal in step 3; every attempt shuffles as if its first epoch were the first of all."""
    from gnnhpc.train.loop import Trainer

    true = Trainer._train_step

    def signalled(trainer: Trainer, step: int, batch: Any) -> bool:
        if step == 3 and rank() == 0:
            os.kill(os.getpid(), signal.SIGUSR2)
        return true(trainer, step, batch)

    Trainer._train_step = signalled  # type: ignore[method-assign]


def starts_again_at_the_first_batch() -> None:
    """A resumed attempt takes the data from their begin."""
    from gnnhpc.batches.image_batches import ImageBatches

    true = ImageBatches.open

    def from_the_begin(batches: ImageBatches, phase: Any, start: int, stop: int) -> Any:
        return true(batches, phase, 0, stop - start)

    ImageBatches.open = from_the_begin  # type: ignore[method-assign]


@pytest.mark.slow
def test_a_resumed_run_is_clean_and_its_order_is_watched(tmp_path: Path) -> None:
    cell = manifest_of(tmp_path, vig(layout="dp2", microbatches=2, train_steps=9))[0]
    stopped = run(tmp_path, cell, plant=interrupted_and_unshuffled)
    assert stopped.result.status == "interrupted"
    wrong = run(tmp_path, cell, plant=starts_again_at_the_first_batch)
    assert wrong.result.resumed_from is not None
    assert judged(wrong)["order"].verdict == "invalid"
    again = run(tmp_path, cell)
    assert again.result.valid
    assert judged(again)["order"].verdict == "ok"
