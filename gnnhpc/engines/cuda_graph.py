"""Steps on a GPU as CUDA graphs: computed once, captured, and then replayed by one launch.

A step of small kernels takes longer to launch than to compute. A replay runs the same kernels on
the same memory, so it gives the same bits. The all-reduce of replicas, clipping and the optimizer
come last and are launched as always: the host launches them while the device still replays, so any
optimizer and any schedule of its learning rate will do.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, MicroBatch
from gnnhpc.engines.engine import StepOutput
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels.dropout_mask import MaskKeys
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.records.schema import Phase

Compute = Callable[[Batch], StepOutput]


def why_eager(experiment: Experiment, device: torch.device) -> str | None:
    """Why no step of an experiment can be captured, in words; None where steps can be.

    What a library's layer does is seen when its first step is captured.
    """
    reasons = {
        "cuda_graph is off": experiment.cuda_graph == "off",
        "the device is no GPU": device.type != "cuda",
        "stages wait for one another's transfers": experiment.layout.stages > 1,
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

    def take(self, batch: Batch) -> bool:
        """Copy a mini-batch to where the graph reads it; false for one that does not fit."""
        pairs = list(zip(self.batch.microbatches, batch.microbatches, strict=False))
        counts = [(b.valid_targets, len(b.microbatches)) for b in (self.batch, batch)]
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


class CudaGraphs:
    """The graphs of one process: of its training steps, and of its evaluations.

    The first step of each phase runs on a stream of its own, where it compiles kernels and finds
    memory, and is captured after that. A capture that a layer does not allow leaves the phase
    eager, and `eager` says why.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._keys = MaskKeys(device)
        self._captured: dict[Phase, Captured] = {}
        self.eager: dict[Phase, str] = {}
        """Why the steps of a phase are not captured."""
        self.replays: dict[Phase, int] = {}
        """How many steps of a phase were replayed."""

    def run(self, phase: Phase, batch: Batch, compute: Compute) -> StepOutput:
        """A step by `compute`, or what it captured; a replay overwrites the output of the last.

        A mini-batch that does not fit what was captured is computed. The device has to be done with
        one step before the next is called.
        """
        if phase in self.eager:
            return compute(batch)
        self._keys.set_step(batch.microbatches[0].context.step)
        captured = self._captured.get(phase)
        if captured is None:
            return self._first(phase, batch, compute)
        if not captured.take(batch):
            return compute(batch)
        captured.graph.replay()
        self.replays[phase] = self.replays.get(phase, 0) + 1
        return captured.output

    def _first(self, phase: Phase, batch: Batch, compute: Compute) -> StepOutput:
        before = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            output = self._compute(batch, compute)
        before.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # Threads that load data may use the device meanwhile.
            capture = torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            )
            with capture, _refusing_to_wait():
                captured = self._compute(batch, compute)
        except RuntimeError as error:
            self.eager[phase] = str(error).strip().splitlines()[0]
            return output
        self._captured[phase] = Captured(graph, batch, captured)
        return output

    def _compute(self, batch: Batch, compute: Compute) -> StepOutput:
        self._keys.upload()
        return compute(with_keys(batch, self._keys))

    def record(self) -> dict[str, str]:
        """How the steps of each phase were computed, for the records."""
        found: dict[str, str] = {}
        for phase, count in self.replays.items():
            found[phase] = f"replayed {count} times"
        for phase, why in self.eager.items():
            found[phase] = f"eager: {why}"
        return found


def with_keys(batch: Batch, keys: MaskKeys) -> Batch:
    """A mini-batch whose dropout masks are those of the step that `keys` has."""
    microbatches = tuple(
        replace(each, context=replace(each.context, mask_keys=keys)) for each in batch.microbatches
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
