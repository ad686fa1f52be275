"""What each rank has observed over its run, gathered at the end for the audit."""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass, field
from typing import Any

import torch

from gnnhpc.check.observer import RunObserver
from gnnhpc.check.watches.gradient_norms import GradientNorms
from gnnhpc.check.watches.processor_use import ProcessorUse
from gnnhpc.check.watches.shared_step import SharedStep
from gnnhpc.check.watches.watched import Watched
from gnnhpc.core.schedule import Action
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.base import parameters_of
from gnnhpc.engines.channels import carried
from gnnhpc.engines.overlapped_gradients import buckets_of
from gnnhpc.engines.stage import Stage
from gnnhpc.engines.system_counters import running_system
from gnnhpc.models.later_weights import leaves_weights
from gnnhpc.records.schema import Phase
from gnnhpc.train.setup import TrainingParts

PIXEL_EDGES = 8
"""Of a pixel: a message along each is a row of its own."""


@dataclass(frozen=True)
class RankObservations:
    """What one rank has observed over its run, small enough to send to rank 0."""

    rank: int
    host: str
    layers: list[str]
    parameters: int
    trained_parameters: int
    """Those that are not frozen."""
    implementation: str
    """Which code computed the layers here: a compiled kernel is not to be had everywhere."""
    threads: dict[int, str]
    """Numbers of threads that torch was set to, each with the first step that had it."""
    threads_wanted: int
    cpus: list[int]
    """The fewest that its computing threads together could use in a step."""
    mismatched_batches: int
    unequal_gradients: int
    differing_losses: int
    """Steps whose reported loss is not the one that was differentiated."""
    repeated_samples: int
    unused_samples: int
    """Nodes of a graph that no step of an epoch used; images may be left over in an epoch."""
    samples: int
    """This replica's, a step."""
    backward_s: float
    overfull_steps: int
    """Steps in which this rank computed for longer than they lasted."""
    overlapping_steps: int
    """Steps that began before the one before them had ended."""
    all_steps_s: float
    """Sum of all steps, warm-up and evaluation included."""
    gradient_norms: GradientNorms
    reductions: int
    train_steps: int
    step_s: list[float]
    """Of each training step that is no warm-up, barrier to barrier."""
    step_compute_s: list[float]
    """This rank's own computing in each of them."""
    step_cpu_s: list[float]
    """Processor time of its computing threads in each of them."""
    cpu_share: float | None
    """Processor time of the computing threads over the time of their computing."""
    compute_share: float | None
    """This rank's own computing over the time of all steps."""
    steal_share: float | None
    run_delay_share: float | None
    """Of all steps' time, how long the computing threads were ready and had no processor."""
    switches: int
    observing_s: float
    """Spent on observing, outside every measured step."""
    run_s: float
    """From before the first step to the end of the last observation."""
    drawn_s: float = 0.0
    """How long its training mini-batches took to be drawn; 0 if nobody knows."""
    drawing_s: float = 0.0
    """How long training steps were together with what they waited for mini-batches."""
    threads_used: dict[int, int] = field(default_factory=dict)
    """How many threads computed: how many training steps that are no warm-up."""
    largest_tensor: int | None = None
    """Elements that no tensor which its layers make of a micro-batch of images has more of; None
    of a graph, whose edges are more or fewer."""
    lost_cpus: list[str] = field(default_factory=list)
    """Where a computing thread could use fewer CPUs than before."""
    calls: dict[str, int] = field(default_factory=dict)
    """Of kernels in the first training step, such as `torch vig_forward`, by code and function."""
    other_calls: list[str] = field(default_factory=list)
    """Where kernels were called otherwise than in the first step of a phase."""
    engine: str = ""
    """Which engine ran: sequential, native, pipelining, torchgpipe."""
    trained_parts: list[bool] = field(default_factory=list)
    """Of the parts of its stage that are called by themselves, or of all as one: whether it has
    something to train."""
    leaves_weights: list[bool] = field(default_factory=list)
    """Likewise whether it has a layer that computes gradients of weights apart when it is asked."""
    carried: dict[str, int] = field(default_factory=dict)
    """Tensors that it sent to other stages, or received, since before the first step, by way."""
    partitions: list[list[str]] = field(default_factory=list)
    """The layers of each stage that this process holds."""
    orders: dict[Phase, list[tuple[Action, ...]]] = field(default_factory=dict)
    """Of the forwards and backwards of steps, those that differ."""
    loaded: dict[str, str] = field(default_factory=dict)
    """Versions that loaded packages say of themselves."""
    shared: list[SharedStep] = field(default_factory=list)
    """Of training steps in which it shared gradients."""
    slowed_by: list[str] = field(default_factory=list)
    wrong_samples: list[str] = field(default_factory=list)
    memory: list[str] = field(default_factory=list)
    """Where a peak was recorded that cannot be."""
    peak_is_of_run: bool = True
    """Whether peaks of memory are of the steps, and not of what a self-check needed before."""
    time_faults: list[str] = field(default_factory=list)
    """Where recorded times contradict one another, or a second clock and hooks."""
    loose_spans: str | None = None
    """Where forward spans hold more than forwards."""
    between_steps_cpu_s: float = 0.0
    """Median processor time of the loop itself between two training steps."""
    gpu: str | None = None
    """Names the GPU that this rank computed on; None on a CPU."""
    processor_use: ProcessorUse | None = None
    """Who used the CPUs that this rank may use; none where the system does not say."""
    watched: Watched | None = None
    """What was looked at closely; none where nothing was."""
    system: str | None = None
    """Names the running system, which several host names may be of; None where it has no name."""
    workers: int = 0
    """Threads or processes that draw its mini-batches in advance."""
    reductions_planned: int = 1
    """All-reduces a step, where replicas share gradients."""

    @property
    def machine(self) -> str:
        """Equal for ranks whose CPUs are of one machine."""
        return self.system or self.host


def rank_observations(observer: RunObserver, **rank_facts: Any) -> RankObservations:
    """What an observer has seen; `rank_facts` are the other fields, which the rank itself knows."""
    times, machine = observer.step_times, observer.machine_use
    between = observer.between_steps_cpu_s
    return RankObservations(
        rank=observer.rank,
        mismatched_batches=observer.mismatched_batches,
        unequal_gradients=observer.unequal_gradients,
        differing_losses=observer.differing_losses,
        backward_s=times.backward_s,
        overfull_steps=times.overfull_steps,
        overlapping_steps=times.overlapping_steps,
        all_steps_s=times.all_steps_s,
        drawn_s=times.drawn_s,
        drawing_s=times.drawing_s,
        gradient_norms=observer.gradient_norms.seen(),
        train_steps=observer.train_steps,
        step_s=times.step_s,
        step_compute_s=times.step_compute_s,
        step_cpu_s=times.step_cpu_s,
        cpu_share=times.cpu_share,
        compute_share=times.compute_share,
        steal_share=times.steal_share,
        run_delay_share=times.run_delay_share,
        processor_use=times.processors.seen(),
        switches=times.switches,
        observing_s=observer.observing_s,
        run_s=observer.run_s,
        watched=None if observer.watch is None else observer.watch.watched(),
        threads=machine.threads,
        threads_used=dict(machine.threads_used),
        cpus=machine.cpus,
        lost_cpus=machine.lost_cpus.told(),
        calls={f"{code} {name}": n for (code, name), n in machine.calls.get("train", {}).items()},
        other_calls=machine.other_calls.told(),
        memory=machine.memory.told(),
        peak_is_of_run=machine.peak_is_of_run,
        slowed_by=list(machine.slowed_by),
        wrong_samples=observer.wrong_samples.told(),
        shared=observer.shared,
        carried=dict(carried - observer.carried_before),
        orders={phase: list(found) for phase, found in observer.orders.items()},
        loaded=_loaded(),
        time_faults=observer.time_faults.told(),
        loose_spans=observer.time_faults.parts.loose(),
        between_steps_cpu_s=statistics.median(between) if between else 0.0,
        **rank_facts,
    )


def _loaded() -> dict[str, str]:
    """Of modules that are loaded, whatever is installed."""
    modules = {name: sys.modules.get(name) for name in ("torch", "numpy", "gnnhpc")}
    found = {name: getattr(module, "__version__", None) for name, module in modules.items()}
    return {name: str(version) for name, version in found.items() if version is not None}


def _layers_of_parts(stage: Stage) -> list[list[str]]:
    return [[layer.name for layer in part.outlines] for part in stage.called]


def _reductions_planned(stage: Stage, bucket_mib: float | None) -> int:
    if bucket_mib is None:
        return 1
    return sum(len(buckets_of(part, bucket_mib)) for part in stage.called)


def _largest_tensor(parts: TrainingParts) -> int:
    """Pixels times the widest that a layer is, which shows in a parameter, times their edges."""
    images = parts.batches.shape_after(-1)[0]
    found = 0
    for outline, layer in zip(parts.stage.outlines, parts.stage.layers, strict=True):
        *pixels, channels = outline.inputs
        sides = [side for parameter in layer.parameters() for side in parameter.shape]
        widest = max(channels, outline.shape[-1], *sides) if sides else channels
        found = max(found, images * math.prod(pixels) * PIXEL_EDGES * widest)
    return found


def gather_observations(
    mesh: Mesh,
    parts: TrainingParts,
    observer: RunObserver,
    environment: Environment,
    bucket_mib: float | None,
) -> list[RankObservations]:
    """Every rank's observations, in rank order, on every rank; a collective.

    `bucket_mib` is the experiment's.
    """
    repeated, fewest = observer.sample_uses.together(mesh)
    graph = parts.batches.graph_facts()
    is_graph = bool(graph)
    # A graph on the device is drawn from by the rank's own thread.
    workers = 0 if graph.get("graph_on") == "device" else graph.get("workers", 0)
    observer.machine_use.threads.setdefault(torch.get_num_threads(), "the end")
    layers = [layer.name for layer in parts.stage.outlines]
    mine = rank_observations(
        observer,
        host=environment.host,
        system=running_system(),
        workers=workers,
        layers=layers,
        parameters=sum(p.numel() for p in parts.stage.parameters()),
        trained_parameters=sum(p.numel() for p in parameters_of(parts.stage)),
        implementation=parts.implementation,
        threads_wanted=environment.cpus,
        largest_tensor=None if is_graph else _largest_tensor(parts),
        samples=parts.batches.samples,
        repeated_samples=repeated,
        unused_samples=parts.batches.total_samples - fewest if is_graph and fewest else 0,
        reductions=parts.engine.gradients.reductions,
        reductions_planned=_reductions_planned(parts.stage, bucket_mib),
        gpu=mesh.gpu,
        leaves_weights=[leaves_weights(part) for part in parts.stage.called],
        partitions=getattr(parts.engine, "partitions", _layers_of_parts(parts.stage)),
        trained_parts=[bool(parameters_of(part)) for part in parts.stage.called],
        engine=type(parts.engine).__name__.removesuffix("Engine").lower(),
    )
    everyone: list[RankObservations] = mesh.gather_objects(mine)
    return everyone
