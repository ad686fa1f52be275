"""What CUDA graphs need: which steps can be captured, how, and what a replay reads.

A step of small kernels takes longer to launch than to compute. A replay runs the same kernels on
the same memory, so it gives the same bits. The all-reduce of replicas, clipping and the optimizer
come last and are launched as always: the host launches them while the device still replays, so any
optimizer and any schedule of its learning rate will do.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels.dropout_mask import MaskKeys
from gnnhpc.models.custom_model import CustomModel

T = TypeVar("T")


def why_eager(experiment: Experiment, device: torch.device) -> str | None:
    """Why no step of an experiment can be captured, in words; None where steps can be.

    What a library's layer does is seen when its first step is captured.
    """
    in_stages, replicas = experiment.layout.stages > 1, experiment.layout.replicas
    in_buckets = experiment.bucket_mib is not None and replicas > 1
    deferred = experiment.batchnorm == "deferred"
    reasons = {
        "cuda_graph is off": experiment.cuda_graph == "off",
        "torch records CUDA graphs of compiled layers": experiment.compile == "reduce-overhead",
        "the device is no GPU": device.type != "cuda",
        "the engine is a library's": in_stages and experiment.engine != "native",
        "replicas reduce gradients within the backward": in_buckets,
        "statistics of BatchNorm move at the end of a mini-batch": in_stages and deferred,
        "each mini-batch has other shapes": experiment.epochs_end_unevenly,
        "edges are cut out of the graph in each step": experiment.rebuild == "layer",
        "activations are recomputed": experiment.activation_checkpointing != "never",
        "a custom model may keep state on the host": isinstance(experiment.model, CustomModel),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def take(captured: Batch, batch: Batch) -> bool:
    """Copy a mini-batch to where a graph reads it; false for one that does not fit."""
    pairs = list(zip(captured.microbatches, batch.microbatches, strict=False))
    counts = [(b.valid_targets, len(b.microbatches)) for b in (captured, batch)]
    if counts[0] != counts[1] or not all(_fits(here, there) for here, there in pairs):
        return False
    for here, there in pairs:
        for into, of in _tensors(here, there):
            if into is not of:
                into.copy_(of, non_blocking=True)
    return True


def _fits(captured: MicroBatch, other: MicroBatch) -> bool:
    """Whether a graph of one micro-batch computes another: a whole graph is the same each time."""
    if captured.context.graph is not other.context.graph:
        return False
    if not isinstance(other.inputs, Tensor) and captured.inputs is not other.inputs:
        return False
    if captured.targets.keys() != other.targets.keys():
        return False
    return all(
        into is of or (into.shape == of.shape and into.dtype == of.dtype)
        for into, of in _tensors(captured, other)
    )


def _tensors(captured: MicroBatch, other: MicroBatch) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(captured.inputs, Tensor) and isinstance(other.inputs, Tensor):
        yield captured.inputs, other.inputs
    for split, target in captured.targets.items():
        yield target, other.targets[split]


class Recorder:
    """Computes on a stream of its own, and captures there; all graphs share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def compute(self, work: Callable[[], T]) -> T:
        """What `work` returns; it may compile kernels and find memory."""
        before = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            result = work()
        before.wait_stream(self._stream)
        return result

    def capture(self, work: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
        """A graph of `work`, and what it returned, whose values come with the first replay.

        Raises RuntimeError for work that a capture does not allow.
        """
        graph = torch.cuda.CUDAGraph()
        # Threads that load data may use the device meanwhile.
        capture = torch.cuda.graph(
            graph,
            pool=self._pool,
            stream=self._stream,
            capture_error_mode="thread_local",
        )
        with capture, _refusing_to_wait():
            return graph, work()


def with_keys(batch: Batch, keys: MaskKeys) -> Batch:
    """A mini-batch whose dropout masks are those of the step that `keys` has."""
    microbatches = tuple(
        replace(each, context=replace(each.context, masks=keys)) for each in batch.microbatches
    )
    return replace(batch, microbatches=microbatches)


@contextlib.contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """torch raises RuntimeError where the host would wait for the device, before it spoils the
    capture."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # torch calls the mode a prototype.
        warnings.simplefilter("ignore")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
