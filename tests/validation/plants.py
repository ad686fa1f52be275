"""Wrong implementations that a test plants into a rank, each in the way in which people err."""

from __future__ import annotations

import functools
import itertools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches import image_batches, shuffle
from gnnhpc.batches.batch import Batch
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.sampled import training_samples
from gnnhpc.engines import sequential, stage
from gnnhpc.engines.gradient_sync import FlatGradients
from gnnhpc.engines.native import ForwardOnly, NativeEngine
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.transfers import Receiver, Sender
from gnnhpc.graphs import halo_chunks
from gnnhpc.models.layers import dropout
from gnnhpc.models.layers.batchnorm import BatchNorm
from gnnhpc.training import loop, setup
from gnnhpc.training.loss_and_metrics import Classification, MeanLoss


def around(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace `owner.name` by `change(true, *args, **kwargs)`, wherever gnnhpc has imported it."""
    true = getattr(owner, name)

    @functools.wraps(true)
    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(true, *args, **kwargs)

    setattr(owner, name, changed)
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("gnnhpc.") and getattr(module, name, None) is true:
            setattr(module, name, changed)


def on_rank(rank: int) -> bool:
    return int(os.environ["RANK"]) == rank


def loss_twice_as_large() -> None:
    around(MeanLoss, "__call__", lambda true, *args: true(*args) * 2)


def mean_of_microbatch_means() -> None:
    def wrong(true: Any, self: MeanLoss, output: Tensor, microbatch: Any, _labelled: int) -> Tensor:
        own = self.task.valid_targets(microbatch.targets, "train")
        return true(self, output, microbatch, max(own, 1) * 4)

    around(MeanLoss, "__call__", wrong)


def gradients_summed_over_replicas() -> None:
    def wrong(true: Any, self: FlatGradients) -> None:
        true(self)
        for flat in self.flats:
            flat.mul_(self.mesh.layout.replicas)

    around(FlatGradients, "average", wrong)


def gradients_not_reduced_on_one_stage() -> None:
    around(
        FlatGradients,
        "_sum_over_replicas",
        lambda true, self: None if self.mesh.stage == 1 else true(self),
    )


def microbatch_backward_twice() -> None:
    backwards = itertools.count()

    def wrong(true: Any, loss: Tensor, gradient: Tensor | None) -> None:
        true(loss * 2 if next(backwards) % 4 == 1 else loss, gradient)

    around(sequential, "backward", wrong)


def microbatch_left_out() -> None:
    backwards = itertools.count()

    def wrong(true: Any, loss: Tensor, gradient: Tensor | None) -> None:
        true(loss * 0 if next(backwards) % 4 == 1 else loss, gradient)

    around(sequential, "backward", wrong)


def stale_activation() -> None:
    """The second tensor that is received is the first one again."""

    def wrong(true: Any, self: Receiver) -> Tensor:
        received = true(self)
        kept = vars(self).setdefault("first_received", received.clone())
        return received.copy_(kept)

    around(Receiver, "take", wrong)


def single_precision_transfers() -> None:
    around(Sender, "send", lambda true, self, x: true(self, x.float().double()))


def single_precision_gradients_sent() -> None:
    def wrong(true: Any, self: Sender, x: Tensor) -> None:
        # Activations are sent by stage 0, gradients by stage 1.
        true(self, x.float().double() if on_rank(1) else x)

    around(Sender, "send", wrong)


def backward_stops_at_the_cut() -> None:
    def wrong(true: Any, self: Sender, x: Tensor) -> None:
        true(self, x * 0 if on_rank(1) else x)

    around(Sender, "send", wrong)


def halo_one_hop_short() -> None:
    def wrong(true: Any, edges: Any, own: Any, hops: int) -> Any:
        zones = true(edges, own, hops)
        return [*zones[:-1], zones[-1][:0]]

    around(halo_chunks, "_zones", wrong)


def edges_lost() -> None:
    def wrong(true: Any, edges: Any, owner: Any) -> Any:
        found = true(edges, owner)
        return found if owner.any() is None else true(edges, np.arange(len(owner)) // 5)

    around(halo_chunks._InEdges, "within", wrong)


def labels_rolled() -> None:
    def wrong(true: Any, *args: Any) -> Batch:
        batch = true(*args)
        rolled = [
            replace(m, targets={split: t.roll(1) for split, t in m.targets.items()})
            for m in batch.microbatches
        ]
        return replace(batch, microbatches=tuple(rolled))

    around(ImageBatches, "_batch", wrong)


def replicas_share_samples() -> None:
    def wrong(true: Any, *args: Any) -> Any:
        samples, batch_size, replicas, _replica, *rest = args
        return true(samples, batch_size, replicas, 0, *rest)

    around(image_batches, "epoch_indices", wrong)


def never_shuffled_again() -> None:
    around(
        shuffle, "permutation", lambda true, samples, seed, epoch: true(samples, seed + 1, epoch)
    )


def evaluation_in_training_mode() -> None:
    around(Stage, "eval", lambda true, self: self)


def optimizer_step_skipped_on_one_stage() -> None:
    def wrong(true: Any, *args: Any) -> Any:
        found = true(*args)
        if on_rank(1):
            found.step = lambda: None
        return found

    around(setup, "build_optimizer", wrong)


def learning_rate_of_one_stage() -> None:
    def wrong(true: Any, *args: Any) -> Any:
        found = true(*args)
        if on_rank(1):
            found.param_groups[0]["lr"] *= 2
        return found

    around(setup, "build_optimizer", wrong)


def running_variance_biased() -> None:
    def wrong(true: Any, self: BatchNorm, mean: Tensor, variance: Tensor, rows: int) -> None:
        true(self, mean, variance * (rows - 1) / rows, rows)

    around(BatchNorm, "_move", wrong)


def statistics_of_replicas_not_averaged() -> None:
    around(loop, "average_running_statistics", lambda true, *args: None)


def dropout_mask_of_the_first_step() -> None:
    def wrong(true: Any, name: str, p: float, training: bool, context: Any) -> Any:
        return true(name, p, training, replace(context, step=0))

    around(dropout, "active_mask", wrong)


def seeds_of_other_layers() -> None:
    around(stage, "layer_seed", lambda true, seed, name: true(seed + 1, name))


def accuracy_over_all_rows() -> None:
    def wrong(true: Any, self: Classification, phase: Any, outputs: Any, batch: Batch) -> Any:
        found = true(self, phase, outputs, batch)
        right, count = found["accuracy"]
        return found | {"accuracy": (right, count + 1)}

    around(Classification, "metric_sums", wrong)


def outputs_of_another_microbatch() -> None:
    around(ForwardOnly, "run", lambda true, *args: list(true(*args))[::-1])


def predicted_links_kept() -> None:
    def wrong(true: Any, nodes: Tensor, without: Tensor, targets: Tensor) -> Any:
        return true(nodes, None, targets)

    around(training_samples, "RequestedNodes", wrong)


def evaluation_moves_parameters() -> None:
    def wrong(true: Any, self: NativeEngine, batch: Batch) -> Any:
        with torch.no_grad():
            for parameter in self.plan.stage.parameters():
                parameter.mul_(1 + 1e-6)
        return true(self, batch)

    around(NativeEngine, "evaluate", wrong)
