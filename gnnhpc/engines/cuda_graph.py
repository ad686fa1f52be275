"""The actions of a rank as CUDA graphs: each forward and each backward of a micro-batch.

A step of small kernels takes longer to launch than to compute. A replay runs the same kernels on
the same memory, so it gives the same bits. The all-reduce of replicas, clipping and the optimizer
come last and are launched as always: the host launches them while the device still replays, so any
optimizer and any schedule of its learning rate will do. Transfers lie between the actions of a
pipeline, so its step cannot be one graph; that of a single stage is one action. The graphs share
their memory, as they are replayed in the order in which they were captured, the schedule's.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch, Inputs, MicroBatch
from gnnhpc.core.schedules import Action
from gnnhpc.engines.engine import StagePlan
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.kernels.dropout_mask import MaskKeys
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.layers.split_backward import DeferredGradient
from gnnhpc.records.schema import Phase


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


def graphs_of(plan: StagePlan) -> StageGraphs | None:
    """Those of a plan's stage; None where its steps are computed."""
    why = why_eager(plan.experiment, plan.mesh.device)
    return StageGraphs(plan) if why is None else None


@dataclass
class Held:
    """What is kept of a micro-batch between its forward and the end of its backward."""

    x: Inputs
    """What the virtual stage computes with."""
    received: Tensor | None = None
    """The buffer that x was received in."""
    result: Tensor | None = None
    """What is differentiated, the output or the loss; None once its backward is done."""
    trains: bool = False
    """Whether anything that the result depends on has a gradient."""
    gradient: Tensor | None = None
    """The gradient of the output, in the buffer that it was received in."""
    deferred: list[DeferredGradient] = field(default_factory=list)
    """Gradients of weights that are still to be computed."""


Results = tuple[Tensor, ...]
Work = Callable[[Held], Results]


class Actions:
    """Computes the actions of a stage as they come."""

    def begin(self, phase: Phase, batch: Batch) -> Batch:
        """The mini-batch of a step, as its actions are to read it."""
        return batch

    def run(self, action: Action, held: Held, work: Work) -> tuple[Held, Results]:
        """Do the `work` of an action; what is kept of its micro-batch, and what it returned."""
        return held, work(held)

    def end(self) -> None:
        """Call once the host has launched all actions of a step, which the device still does."""


@dataclass
class _Captured:
    """The graphs of one phase, and the memory that they read and write."""

    batch: Batch
    graphs: dict[Action, tuple[torch.cuda.CUDAGraph, Results]] = field(default_factory=dict)
    held: dict[tuple[int, int], Held] = field(default_factory=dict)
    """Virtual stage and micro-batch -> what its graphs read and write."""
    gradients: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """The same -> where the graph of its backward reads the gradient of the output."""
    kept_bytes: int = 0
    """What the pool has grown by for its graphs, beside tensors that are still there."""


class StageGraphs(Actions):
    """Replays the actions of a plan's stage.

    In the first step of a phase each action is computed, on a stream of its own, and captured after
    that. A capture that a layer does not allow leaves the phase eager, and layers drop what they
    keep of a mini-batch that was not captured. A mini-batch that does not fit what was captured is
    computed. A replay overwrites the results of the last; the device has to be done with it.
    """

    def __init__(self, plan: StagePlan) -> None:
        device = plan.mesh.device
        self.keys = MaskKeys(device)
        self.eager: dict[Phase, str] = {}
        """Why the steps of a phase are not captured."""
        self.replays: dict[Phase, int] = {}
        """How many steps of a phase were replayed."""
        self._stage, self._timer = plan.stage, plan.timer
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._phase: Phase = "train"
        self._step = 0
        self._captured: dict[Phase, _Captured] = {}
        self._captures = self._replays = False
        """What the present step does; it computes where it does neither."""
        self.warms_up = False
        """Whether the present step does what later ones need not: it captures, or is the first of
        its phase that is computed since a capture, which has freed what torch kept of memory."""
        self._computed: set[Phase] = set()
        """Phases of which a step was computed since the last capture."""

    def record(self) -> dict[str, str]:
        """How the steps of each phase were computed, for the records."""
        found: dict[str, str] = {p: f"replayed {count} times" for p, count in self.replays.items()}
        found.update((phase, f"eager: {why}") for phase, why in self.eager.items())
        return found

    @property
    def kept_bytes(self) -> int:
        """Memory in which replays compute, and which torch counts for no tensor."""
        return sum(each.kept_bytes for each in self._captured.values())

    def begin(self, phase: Phase, batch: Batch) -> Batch:
        self._phase, self._step = phase, batch.microbatches[0].context.step
        if phase == "train":
            self.keys.bring(self._step)
        captured = None if self._timer.has_spans else self._captured.get(phase)
        self._replays = captured is not None and _take(captured.batch, batch)
        self._captures = not (
            self._timer.has_spans or phase in self.eager or phase in self._captured
        )
        if captured is not None and self._replays:
            self.replays[phase] = self.replays.get(phase, 0) + 1
            self.warms_up = False
            return captured.batch
        # Of steps that are computed too, as programs are compiled for keys in memory.
        microbatches = tuple(
            replace(each, context=replace(each.context, masks=self.keys))
            for each in batch.microbatches
        )
        batch = replace(batch, microbatches=microbatches)
        self.warms_up = phase not in self._computed
        self._computed.add(phase)
        if self._captures:
            self._captured[phase], self.warms_up = _Captured(batch), True
            self._computed.clear()
        return batch

    def end(self) -> None:
        if self._phase == "train":
            self.keys.bring(self._step + 1)

    def run(self, action: Action, held: Held, work: Work) -> tuple[Held, Results]:
        if self._replays:
            return self._replay(action, held)
        if not self._captures:
            return super().run(action, held, work)
        # It may compile kernels and find memory.
        before = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(before)
        with torch.cuda.stream(self._stream):
            results = work(held)
        before.wait_stream(self._stream)
        try:
            # Where the end of a capture fails, torch leaves its stream the current one.
            with torch.cuda.stream(self._stream):
                self._capture(action, held, work)
        except RuntimeError as error:
            self._captures = False
            self.eager[self._phase] = str(error).strip().splitlines()[0]
            self._stage.forget_minibatch()
            del self._captured[self._phase]
            # It also leaves the pool in use, so that no other capture could begin in it.
            self._pool = torch.cuda.graph_pool_handle()
        return held, results

    def _capture(self, action: Action, held: Held, work: Work) -> None:
        """Record the graph of an action, and what it returns, whose values come with a replay.

        Raises RuntimeError for work that a capture does not allow.
        """
        captured, place = self._captured[self._phase], (action.virtual_stage, action.microbatch)
        if action.kind == "forward":
            x = held.x
            if held.received is not None:
                # In memory of its own, with a gradient where it has one.
                assert isinstance(x, Tensor)
                x = x.detach().clone().requires_grad_(x.requires_grad)
            captured.held[place] = Held(x)
        static = captured.held[place]
        if action.kind == "backward" and held.gradient is not None:
            static.gradient = captured.gradients[place] = held.gradient.clone()
        graph = torch.cuda.CUDAGraph()
        # Threads that load data may use the device meanwhile.
        capture = torch.cuda.graph(
            graph,
            pool=self._pool,
            stream=self._stream,
            capture_error_mode="thread_local",
        )
        with capture, _refusing_to_wait():
            before = _unused_bytes(self._stream.device)
            captured.graphs[action] = graph, work(static)
            captured.kept_bytes += _unused_bytes(self._stream.device) - before

    @torch.no_grad()
    def _replay(self, action: Action, held: Held) -> tuple[Held, Results]:
        captured, place = self._captured[self._phase], (action.virtual_stage, action.microbatch)
        static = captured.held[place]
        if action.kind == "forward" and held.received is not None:
            static.received = held.received
            assert isinstance(static.x, Tensor)
            static.x.copy_(held.received)
        elif action.kind == "backward" and held.gradient is not None:
            captured.gradients[place].copy_(held.gradient)
        graph, results = captured.graphs[action]
        graph.replay()
        return static, results


def _take(captured: Batch, batch: Batch) -> bool:
    """Copy a mini-batch to where a graph reads it; false for one that does not fit."""
    pairs = list(zip(captured.microbatches, batch.microbatches, strict=False))
    counts = [(b.valid_targets, len(b.microbatches)) for b in (captured, batch)]
    if counts[0] != counts[1] or not all(_fits(*pair) for pair in pairs):
        return False
    for into, of in itertools.chain.from_iterable(_tensors(*pair) for pair in pairs):
        if into is not of:
            into.copy_(of, non_blocking=True)
    return True


def _fits(captured: MicroBatch, other: MicroBatch) -> bool:
    """Whether a graph of one micro-batch computes another: a whole graph is the same each time."""
    return (
        captured.context.graph is other.context.graph
        and (isinstance(other.inputs, Tensor) or captured.inputs is other.inputs)
        and captured.targets.keys() == other.targets.keys()
        and all(
            into is of or (into.shape == of.shape and into.dtype == of.dtype)
            for into, of in _tensors(captured, other)
        )
    )


def _tensors(captured: MicroBatch, other: MicroBatch) -> Iterator[tuple[Tensor, Tensor]]:
    if isinstance(captured.inputs, Tensor) and isinstance(other.inputs, Tensor):
        yield captured.inputs, other.inputs
    for split, target in captured.targets.items():
        yield target, other.targets[split]


def _unused_bytes(device: torch.device) -> int:
    """What torch has taken from a device and uses for no tensor."""
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


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
