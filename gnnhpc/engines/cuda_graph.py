"""Steps on a GPU as CUDA graphs: computed once, captured, and then replayed by one launch.

A step of small kernels takes longer to launch than to compute. A replay runs the same kernels on
the same memory, so it gives the same bits. The all-reduce of replicas, clipping and the optimizer
come last and are launched as always: the host launches them while the device still replays, so any
optimizer and any schedule of its learning rate will do. `stage_graphs` does the same for the
actions of a pipeline.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.engines.engine import StepOutput
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels.dropout_mask import MaskKeys
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.records.schema import Phase

Compute = Callable[[Batch], StepOutput]
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


@dataclass(frozen=True)
class Captured:
    """A graph, and the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    """The mini-batch that was captured; later ones are copied into its tensors."""
    output: StepOutput


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


class PhaseGraphs:
    """What was replayed in training and in evaluation, and why the rest was computed."""

    def __init__(self, device: torch.device) -> None:
        self.recorder = Recorder(device)
        self.keys = MaskKeys(device)
        self.eager: dict[Phase, str] = {}
        """Why the steps of a phase are not captured."""
        self.replays: dict[Phase, int] = {}
        """How many steps of a phase were replayed."""

    def record(self) -> dict[str, str]:
        """How the steps of each phase were computed, for the records."""
        found: dict[str, str] = {}
        for phase, count in self.replays.items():
            found[phase] = f"replayed {count} times"
        for phase, why in self.eager.items():
            found[phase] = f"eager: {why}"
        return found


class CudaGraphs(PhaseGraphs):
    """The graphs of one process: of its training steps, and of its evaluations.

    The first step of each phase is computed, and captured after that. A capture that a layer does
    not allow leaves the phase eager, and `eager` says why; `forget` drops what the layers keep of
    the mini-batch that was not captured.
    """

    def __init__(self, device: torch.device, forget: Callable[[], None]) -> None:
        super().__init__(device)
        self._forget = forget
        self._captured: dict[Phase, Captured] = {}

    def run(self, phase: Phase, batch: Batch, compute: Compute) -> StepOutput:
        """A step by `compute`, or what it captured; a replay overwrites the output of the last.

        A mini-batch that does not fit what was captured is computed. The device has to be done with
        one step before the next is called.
        """
        if phase in self.eager:
            return compute(batch)
        self.keys.set_step(batch.microbatches[0].context.step)
        captured = self._captured.get(phase)
        if captured is None:
            return self._first(phase, batch, compute)
        if not take(captured.batch, batch):
            return compute(batch)
        captured.graph.replay()
        self.replays[phase] = self.replays.get(phase, 0) + 1
        return captured.output

    def _first(self, phase: Phase, batch: Batch, compute: Compute) -> StepOutput:
        def with_masks() -> StepOutput:
            self.keys.upload()
            return compute(with_keys(batch, self.keys))

        output = self.recorder.compute(with_masks)
        try:
            graph, captured = self.recorder.capture(with_masks)
        except RuntimeError as error:
            self.eager[phase] = first_line(error)
            self._forget()
            return output
        self._captured[phase] = Captured(graph, batch, captured)
        return output


def first_line(error: RuntimeError) -> str:
    """Why a capture was not allowed."""
    return str(error).strip().splitlines()[0]


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
