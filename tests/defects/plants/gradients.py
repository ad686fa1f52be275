"""The scale of the loss and of gradients, and gradients that replicas do not share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import functional

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.gradient_sync import BucketedGradients, FlatGradients
from gnnhpc.training.loss_and_metrics import MeanLoss
from tests.defects import cells
from tests.defects.defect import around, planted, replace

of_scale = functools.partial(
    planted, kind="scale of loss and gradients", cell=cells.VIG, mechanism="engine-parity"
)
LOSS = (MeanLoss, "__call__")


@of_scale(words="0.25 times the expected", at=(FlatGradients, "average"))
def gradients_divided_by_the_micro_batches_twice(original: Any, gradients: FlatGradients) -> None:
    for flat in gradients.flats:
        flat.div_(4)
    original(gradients)


@of_scale(words="4 times as much", at=LOSS)
def gradients_summed_over_micro_batches(
    _: Any, loss: Any, output: Tensor, batch: MicroBatch, *rest: Any
) -> Tensor:
    """The loss of each micro-batch is its own mean."""
    return functional.cross_entropy(output, batch.targets["train"])


@of_scale(cell=cells.GAT, words="the loss is", at=LOSS)
def the_mean_of_the_means_of_chunks(
    _: Any, loss: MeanLoss, output: Tensor, batch: MicroBatch, *rest: Any
) -> Tensor:
    count = loss.task.valid_targets(batch.targets, "train")
    return loss.task.summed_loss(output, batch.targets, "train") / count / 3


@of_scale(cell=cells.VIG_REPLICAS, words="2 times the expected", at=(FlatGradients, "average"))
def gradients_summed_over_replicas(original: Any, gradients: FlatGradients) -> None:
    for flat in gradients.flats:
        flat.mul_(2)
    original(gradients)


@of_scale(cell=cells.SAMPLED, words="0.1875 times as much", at=(SampledBatches, "_batch"))
def a_smaller_mini_batch_divided_by_the_batch_size(
    original: Any, batches: SampledBatches, sampled: Any
) -> Batch:
    batch: Batch = original(batches, sampled)
    return dataclasses.replace(batch, valid_targets=batches.samples)


of_replicas = functools.partial(
    planted, kind="replicas", mechanism="invariants", words="differ between replicas 0 and 1"
)


@of_replicas(cell=cells.VIG_REPLICAS, words="0 all-reduces in 10 steps")
def gradients_not_shared_by_the_replicas() -> None:
    replace(FlatGradients, "average", lambda gradients: None)


@of_replicas(cell=cells.VIG_BUCKETS)
def buckets_reduced_before_the_last_micro_batch() -> None:
    """As soon as their gradients of the first micro-batch are there."""

    def of_the_first(original: Any, gradients: Any, plan: Any, mib: float, last: Any) -> None:
        original(gradients, plan, mib, [1 - each for each in last])

    def at_once(original: Any, mesh: Mesh, tensor: Tensor) -> Callable[[], None]:
        original(mesh, tensor)()
        return lambda: None

    around(BucketedGradients, "__init__", of_the_first)
    replace(BucketedGradients, "_gradient_arrived", BucketedGradients._reduce_after)
    around(Mesh, "begin_sum_over_replicas", at_once)


@of_replicas(cell=cells.VIG_BUCKETS, at=(BucketedGradients, "_reduce_after"))
def one_bucket_not_reduced(
    original: Any, gradients: BucketedGradients, place: int, layer: int
) -> None:
    last = len(gradients.buckets) - 1
    gradients._begun.setdefault(last, lambda: None)
    original(gradients, place, layer)
