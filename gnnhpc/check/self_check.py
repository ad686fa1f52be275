"""The check at the start and at the end of every attempt: small steps of all ranks against a twin.

The steps run through the real loop and engine, with the same layers, layout, schedule, kernels and
threads, on a stage of their own; so nothing of the run is touched, and nothing need be put back but
the generators of random numbers. The twin then runs on rank 0 (`gnnhpc.check.twin`). At the end
the stage goes on from what the run holds. `verify` is the same with more steps.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnnhpc.batches.batch import Batches
from gnnhpc.batches.chunk_batches import ChunkBatches
from gnnhpc.batches.graph_set_batches import GraphSetBatches
from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.batches.plan import BatchPlan
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.check.audit import audit
from gnnhpc.check.capture import CapturingEngine, RankSeen, first_seen
from gnnhpc.check.check_slice import CheckSlice, check_slice
from gnnhpc.check.compare_gradients import Verdict
from gnnhpc.check.compare_steps import StepComparison
from gnnhpc.check.observations import gather_observations
from gnnhpc.check.observer import RunObserver
from gnnhpc.check.plain.parts import held_by
from gnnhpc.check.process_state import one_thread
from gnnhpc.check.run_state import go_on_from
from gnnhpc.check.seen_ranks import SeenRanks
from gnnhpc.check.twin.data import TwinData, TwinGraphData, TwinImages, sliced_graph
from gnnhpc.check.twin.graph_sets import TwinGraphSet, sliced_graph_set
from gnnhpc.check.twin.own_model import OwnModelTwin
from gnnhpc.check.twin.plain_model import PlainModel, plain_layer
from gnnhpc.check.twin.sampled import drawn_by_library
from gnnhpc.check.watches.run_watch import RunWatch
from gnnhpc.core.errors import GnnhpcError
from gnnhpc.data.images import Images
from gnnhpc.distributed.allocator import give_back_freed_memory
from gnnhpc.distributed.environment import Environment
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.system_counters import forget_peak_rss
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.generators import generators_put_back
from gnnhpc.records.schema import Check
from gnnhpc.train.loop import NotFiniteError, Trainer
from gnnhpc.train.setup import TrainingParts, set_up

COST_S = 3.0
COST_SHARE = 0.05
"""What self-checks may take: the larger of these seconds and this share of the attempt."""
UNTOLD = 0.03
"""Where rounding may make more than this of what a user's layers compute, an error of that size
would pass."""


@dataclass(frozen=True)
class SelfCheck:
    """What a self-check found, on rank 0; the other ranks know its cost alone."""

    part: CheckSlice
    seconds: float
    verdict: Verdict | None = None
    own_arithmetic: bool = False
    """Whether the model is a user's, whose layers are taken as they are."""
    random_layer: str | None = None
    """A layer of a user's model that draws its own random numbers, so nothing can be compared."""
    not_finite: str = ""
    """What became no finite number, so that nothing can be compared."""
    diverges: bool = False
    """Whether it does so in the twin as well, which goes on from what the run holds."""
    peak_forgotten: bool = True
    """Whether the peak of this rank's memory is from here on that of what follows."""

    @property
    def name(self) -> str:
        """Of its event and its check in the result."""
        return self.part.name

    @property
    def cause(self) -> str | None:
        """The likeliest cause of its failing; None where it passed or nothing was compared."""
        if self.not_finite and not self.diverges:
            return f"loss: {self.not_finite}"
        failed = self.verdict is not None and not self.verdict.passed
        return self.verdict.causes[0] if self.verdict is not None and failed else None

    @property
    def dead(self) -> list[str]:
        """Layers without a gradient, here and in the twin; none where it did not pass."""
        return self.verdict.dead if self.verdict is not None and self.verdict.passed else []

    def as_check(self, attempt_s: float, before_s: float = 0.0) -> Check:
        """For the result of an attempt that took `attempt_s` seconds, after another that took
        `before_s`."""
        seconds = before_s + self.seconds
        share = seconds / attempt_s if attempt_s > 0 else 0.0
        steps = self.part.steps
        name = self.name
        taken = f"{steps} step{'s' if steps > 1 else ''} and an evaluation"
        values: dict[str, Any] = {"seconds": round(self.seconds, 3), "share": round(share, 4)}
        on = f" on {self.part.left_out}" if self.part.left_out else ""
        cost = f"took {self.seconds:.2g} s, {share:.1%} of the attempt"
        if before_s:
            cost = f"took {self.seconds:.2g} s, with those before {share:.1%} of the attempt"
        if seconds > COST_S and share > COST_SHARE:
            cost += f", more than {COST_S:g} s and {COST_SHARE:.0%}: this machine was slow at it"
        if self.verdict is not None:
            values |= {"worst": dict(self.verdict.worst_of), "kinks": self.verdict.kinks}
            values |= {"steps": steps, "lost_in_rounding": self.verdict.lost}
        if self.cause is not None:
            return Check(name, "invalid", f"{self.cause}{on}; {cost}", values)
        if self.random_layer is not None:
            detail = (
                f"{self.random_layer} gives another output each time, by random numbers that are "
                f"not drawn from the context: nothing can be held against it; {cost}"
            )
            return Check(name, "unknown", detail, values | {"random_layer": self.random_layer})
        if self.diverges:
            detail = (
                f"the run diverges: one step more, {self.not_finite}, and the twin's is no finite "
                f"number either, so nothing can be compared; {cost}"
            )
            return Check(name, "unknown", detail, values)
        whose = "; the arithmetic of its layers is the user's own" if self.own_arithmetic else ""
        detail = f"{taken}{on} are the twin's"
        if self.verdict is not None and self.verdict.lost:
            lost = ", ".join(self.verdict.lost)
            detail += f", but for what rounding hides of the gradient of {lost} in a step"
        hidden = self.verdict.hidden if self.verdict is not None else {}
        if hidden:
            values |= {"hidden": {what: round(share, 6) for what, share in hidden.items()}}
            detail += "; rounding may make " + ", ".join(
                f"{100 * min(share, 1.0):.2g} % of {what}" for what, share in hidden.items()
            )
        untold = any(share > UNTOLD for share in hidden.values())
        if untold:
            detail += ", so that little can be told of that"
        return Check(name, "unknown" if untold else "ok", f"{detail}{whose}; {cost}", values)


def self_check(
    experiment: Experiment,
    parts: TrainingParts,
    mesh: Mesh,
    environment: Environment,
    root: Path | None,
    part: CheckSlice | None = None,
    *,
    audited: bool = False,
) -> SelfCheck:
    """Take the slice's steps on all ranks and compare them; a collective.

    `audited` makes what the audit of these steps finds invalid a cause too; a run audits all of
    its own steps. Raises what the engine raises, and GnnhpcError where stages hold other layers
    than planned: nothing can be compared then.
    """
    began = time.perf_counter()
    part = part or check_slice(experiment)
    with generators_put_back():
        seen, audit_of, not_finite = _take_steps(part, parts, mesh, environment, root, audited)
        if not_finite and not part.first:
            return SelfCheck(part, time.perf_counter() - began, not_finite=not_finite)
        for check in audit_of(()):
            if check.name == "cut" and check.verdict == "invalid":
                raise GnnhpcError(f"cut: {check.detail}")

        def invalid(dead: Collection[str]) -> dict[str, str]:
            checks = audit_of(dead) if audited else []
            return {c.name: c.detail for c in checks if c.verdict == "invalid"}

        everyone = mesh.gather_on_first(seen)
        found: dict[str, Any] = {}
        if mesh.rank == 0:
            with parts.timer.storage("reading the twin's data"), one_thread():
                found = _compare(part, parts, everyone, invalid, root, not_finite)
        mesh.barrier()
    # What a run's steps need is not what the twin needed.
    gc.collect()
    give_back_freed_memory()
    forgotten, seconds = forget_peak_rss(), time.perf_counter() - began
    return SelfCheck(part, seconds, not_finite=not_finite, peak_forgotten=forgotten, **found)


def _take_steps(
    part: CheckSlice,
    parts: TrainingParts,
    mesh: Mesh,
    environment: Environment,
    root: Path | None,
    audited: bool,
) -> tuple[RankSeen, Callable[[Collection[str]], list[Check]], str]:
    """What was seen, the audit of it where some layers have no gradient in the twin either, and
    which loss ended it by being no finite number."""
    experiment = part.experiment
    small = set_up(
        experiment,
        mesh,
        root,
        planned=parts.planned,
        outlines=part.outlines,
        batches=_batches(part, parts, mesh, root),
        timer=parts.timer,
    )
    if part.first:
        go_on_from(parts, small)
    seen = first_seen(small.stage, small.optimizer, mesh.replica, mesh.stage)
    engine = CapturingEngine(
        small.engine, small.stage, seen, keeps_edges=drawn_by_library(experiment)
    )
    # What is read again is whole images and graphs.
    whole = part.side is None and part.nodes is None and part.graphs is None
    watch = RunWatch.of(experiment, mesh, small, root) if audited and whole else None
    if watch is not None:
        watch.seeded = False
    observer = RunObserver.of(mesh, small.batches, watch)
    trainer = Trainer(
        experiment=experiment,
        mesh=mesh,
        stage=small.stage,
        engine=engine,
        batches=small.batches,
        task=small.task,
        optimizer=small.optimizer,
        timer=parts.timer,
        writer=_NoRecords(),
        observer=observer,
        report=engine.keep_step,
    )
    try:
        trainer.run(part.first)
    except NotFiniteError as error:
        # On every rank: the loss is all ranks'.
        return seen, lambda dead: [], str(error)
    observations = gather_observations(mesh, small, observer, environment, experiment.bucket_mib)
    graph = small.batches.graph_facts()
    given = (observations, part.outlines, mesh.layout, parts.planned, held_by(experiment), graph)
    return seen, lambda dead: audit(*given, dead), ""


def _batches(part: CheckSlice, parts: TrainingParts, mesh: Mesh, root: Path | None) -> Batches:
    plan = BatchPlan(part.experiment, part.outlines, mesh, root)
    if isinstance(parts.batches, ImageBatches):
        side = part.side
        images = {
            split: Images(tuple(p[:, :, :side, :side] for p in i.parts), i.labels, i.classes)
            for split, i in parts.batches.images.items()
        }
        return ImageBatches(plan, images)
    if part.nodes is not None:
        graph = sliced_graph(part, root)
        sampled = part.experiment.sampling is not None
        return SampledBatches(plan, graph) if sampled else ChunkBatches(plan, graph)
    if part.graphs is not None:
        return GraphSetBatches(plan, sliced_graph_set(part, root))
    # A whole graph's batches are the same in every step.
    return parts.batches


def _compare(
    part: CheckSlice,
    parts: TrainingParts,
    seen: list[RankSeen],
    invalid: Callable[[Collection[str]], Mapping[str, str]],
    root: Path | None,
    not_finite: str,
) -> dict[str, Any]:
    """The fields of the self-check that rank 0 alone knows."""
    experiment = part.experiment
    twin, single = twin_of(part)
    own = isinstance(twin, OwnModelTwin)
    data: TwinData
    if experiment.data.facts().kind == "images":
        data = TwinImages(part, root)
    elif experiment.data.facts().kind == "graphs":
        data = TwinGraphSet(part, sliced_graph_set(part, root), whole=not own)
    else:
        graph, drawn = sliced_graph(part, root), SeenRanks(seen, experiment.layout.replicas).edges
        data = TwinGraphData(part, graph, whole=not own, drawn=drawn)
    if isinstance(twin, OwnModelTwin):
        layer = twin.random_layer(data.pieces("train", part.first)[0])
        if layer is not None:
            return {"own_arithmetic": True, "random_layer": layer}
    comparison = StepComparison(
        experiment=experiment,
        layers=[layer.name for layer in part.outlines],
        stages={
            part.outlines[i].name: stage
            for stage, planned in enumerate(parts.planned)
            for i in planned
        },
        seen=SeenRanks(seen, experiment.layout.replicas),
        twin=twin,
        pieces=data.pieces,
        single=single,
        first=part.first,
    )
    if not_finite:
        return {"own_arithmetic": own, "diverges": comparison.diverges()}
    return {"own_arithmetic": own, "verdict": comparison.run(invalid)}


def twin_of(part: CheckSlice) -> tuple[PlainModel | OwnModelTwin, PlainModel | None]:
    """The twin, and for a run in single precision the same in that precision, if it has one."""
    experiment = part.experiment
    layers = [plain_layer(experiment.model, each) for each in part.outlines]
    plain = [each for each in layers if each is not None]
    if len(plain) < len(layers):
        return OwnModelTwin(experiment, part.outlines), None
    single = PlainModel(experiment, part.outlines, plain, torch.float32)
    twin = PlainModel(experiment, part.outlines, plain)
    return twin, single if experiment.dtype == "float32" else None


class _NoRecords:
    """The steps of a check are not the run's: nothing is written."""

    def write(self, *records: object) -> None:
        pass
