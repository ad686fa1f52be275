"""What is looked at in every run, always: each defect of the published studies has its check.

Observations are gathered on every rank while the run goes on, outside the timed region; verdicts
are drawn once, by rank 0, from all ranks' findings.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnhpc.layout import Layout
from gnnhpc.models.outline import LayerOutline
from gnnhpc.records import Check, StepRecord

if TYPE_CHECKING:
    import torch

    from gnnhpc.assemble import Parts
    from gnnhpc.environment import Environment
    from gnnhpc.mesh import Mesh
    from gnnhpc.timing import StepTimes
    from gnnhpc.workload import Batch

NOISY_SHARE = 0.05
"""Steal, or processor time missing from busy time, beyond which a cell is called noisy."""
LOSS_TOLERANCE = 1e-4
"""Relative difference of two sums of the same float32 losses that rounding cannot explain."""
DRIFT = 0.10
"""Change of the median step time, first to last third, beyond which a cell is flagged."""


@dataclass(frozen=True)
class Findings:
    """One rank's observations, small enough to send to rank 0."""

    rank: int
    host: str
    layers: list[str]
    parameters: int
    threads: int
    threads_wanted: int
    cpus: list[int]
    mismatched_batches: int
    unequal_gradients: int
    other_losses: int
    repeated_samples: int
    samples: int
    """This replica's, a step."""
    backward_s: float
    median_grad_norm: float | None
    reductions: int
    train_steps: int
    walls: list[float]
    cpu_share: float | None
    steal_share: float | None
    switches: int


@dataclass
class Observations:
    """Collects as the steps go by; cheap, and never inside the timed region."""

    layout: Layout
    rank: int
    total_samples: int
    grad_norm: float | None = None
    mismatched_batches: int = 0
    unequal_gradients: int = 0
    other_losses: int = 0
    _seen: dict[int, np.ndarray[Any, np.dtype[np.int16]]] = field(default_factory=dict)
    _norms: list[float] = field(default_factory=list)
    _walls: list[float] = field(default_factory=list)
    _cpu: float = 0.0
    _busy: float = 0.0
    _steal: float | None = 0.0
    _wall: float = 0.0
    _backward: float = 0.0
    _switches: int = 0
    _steps: int = 0

    def saw(self, batch: Batch, grad_norm: float | None) -> None:
        """After a training step: which samples it was, and how long its gradient is."""
        self.grad_norm = grad_norm
        self._steps += 1
        if grad_norm is not None:
            self._norms.append(grad_norm)
        if len(batch.sample_ids):
            counts = self._seen.setdefault(
                batch.epoch, np.zeros(self.total_samples, dtype=np.int16)
            )
            np.add.at(counts, batch.sample_ids, 1)

    def compare(self, checksums: torch.Tensor, norms: torch.Tensor | None) -> None:
        """First and last stage must have loaded the same batch; replicas must hold one gradient.

        Both are [world_size]; the all-reduce leaves the same bits on every replica, so the norms
        are compared for equality.
        """
        layout = self.layout
        for replica in range(layout.replicas):
            first = layout.rank_of(replica, 0)
            last = layout.rank_of(replica, layout.stages - 1)
            self.mismatched_batches += int(checksums[first] != checksums[last])
        if norms is not None:
            for stage in range(layout.stages):
                ranks = layout.replica_ranks(stage)
                self.unequal_gradients += int(len({float(norms[r]) for r in ranks}) > 1)

    def trained(self, differentiated: float, reported: float) -> None:
        """The loss whose gradient was taken must be the mean over labelled samples reported."""
        if math.isfinite(reported) and not math.isclose(
            differentiated, reported, rel_tol=LOSS_TOLERANCE, abs_tol=LOSS_TOLERANCE
        ):
            self.other_losses += 1

    def timed(self, record: StepRecord, times: StepTimes) -> None:
        if record.warmup:
            return
        self._switches += times.involuntary_switches
        self._cpu += times.cpu_s
        self._busy += times.busy_s
        self._wall += times.wall_s
        if self._steal is not None:
            self._steal = None if times.steal_s is None else self._steal + times.steal_s
        if record.phase == "train":
            self._walls.append(times.wall_s)
            self._backward += times.total("backward")

    def seen_counts(self) -> dict[int, np.ndarray[Any, np.dtype[np.int16]]]:
        """Of each epoch, how often this replica was given each sample."""
        return self._seen

    def findings(self, **known: Any) -> Findings:
        """These observations with what only the rank itself knows."""
        return Findings(
            rank=self.rank,
            mismatched_batches=self.mismatched_batches,
            unequal_gradients=self.unequal_gradients,
            other_losses=self.other_losses,
            backward_s=self._backward,
            median_grad_norm=statistics.median(self._norms) if self._norms else None,
            train_steps=self._steps,
            walls=self._walls,
            cpu_share=self._cpu / self._busy if self._busy else None,
            steal_share=(
                None if self._steal is None or not self._wall else self._steal / self._wall
            ),
            switches=self._switches,
            **known,
        )


def gather_findings(
    mesh: Mesh, parts: Parts, observations: Observations, environment: Environment
) -> list[Findings]:
    """Every rank's findings, in rank order, on every rank; a collective."""
    import torch

    mine = observations.findings(
        host=environment.host,
        layers=[layer.name for layer in parts.stage.outlines],
        parameters=sum(p.numel() for p in parts.stage.parameters()),
        threads=torch.get_num_threads(),
        threads_wanted=environment.cpus,
        cpus=sorted(os.sched_getaffinity(0)),
        samples=parts.workload.samples,
        repeated_samples=_repeated(mesh, observations),
        reductions=parts.engine.reductions,
    )
    return [Findings(**found) for found in mesh.share(asdict(mine))]


def _repeated(mesh: Mesh, observations: Observations) -> int:
    """Samples that one epoch gave out more than once, over all replicas.

    First stages only are counted: the other stages of a replica are given the same samples, which
    the checksums hold.
    """
    counts = observations.seen_counts() if mesh.is_first else {}
    epochs = {epoch: np.flatnonzero(seen > 1).size for epoch, seen in counts.items()}
    packed = {epoch: np.packbits(seen > 0).tobytes() for epoch, seen in counts.items()}
    repeated = sum(epochs.values())
    everyone = [found for found in mesh.share(packed) if found]
    for epoch in {epoch for found in everyone for epoch in found}:
        bits = [
            np.unpackbits(np.frombuffer(found[epoch], dtype=np.uint8))
            for found in everyone
            if epoch in found
        ]
        together = np.sum(np.stack(bits), axis=0)
        repeated += int((together > 1).sum())
    return repeated


def judge(
    findings: Sequence[Findings],
    outlines: Sequence[LayerOutline],
    layout: Layout,
    planned: Sequence[range],
    graph: dict[str, Any],
) -> list[Check]:
    """All verdicts, from all ranks' findings in rank order."""
    checks = [
        _parameters(findings, outlines, layout),
        _cut(findings, outlines, layout, planned),
        _labels(findings),
        _samples(findings),
        _replicas(findings, layout),
        _gradients(findings),
        _loss(findings),
        _reductions(findings, layout),
        _threads(findings),
        _noise(findings),
        _drift(findings[0].walls),
    ]
    if graph:
        checks.append(_edges(graph))
    return checks


def _parameters(
    findings: Sequence[Findings], outlines: Sequence[LayerOutline], layout: Layout
) -> Check:
    expected = sum(layer.parameters for layer in outlines)
    built = [
        sum(findings[rank].parameters for rank in layout.pipeline_ranks(replica))
        for replica in range(layout.replicas)
    ]
    verdict = "ok" if all(count == expected for count in built) else "invalid"
    return Check(
        "parameters",
        verdict,  # type: ignore[arg-type]
        f"{built} built over the stages of each replica, {expected} in the model",
        {"expected": expected, "built": built},
    )


def _cut(
    findings: Sequence[Findings],
    outlines: Sequence[LayerOutline],
    layout: Layout,
    planned: Sequence[range],
) -> Check:
    names = [layer.name for layer in outlines]
    wrong = [
        f.rank for f in findings if f.layers != [names[i] for i in planned[layout.stage_of(f.rank)]]
    ]
    counts = [len(part) for part in planned]
    whole = sorted(i for part in planned for i in part) == list(range(len(names)))
    if wrong or not whole:
        return Check("cut", "invalid", f"ranks {wrong} do not hold the layers planned {counts}", {})
    return Check("cut", "ok", f"layers a stage: {counts} of {len(names)}", {"balance": counts})


def _labels(findings: Sequence[Findings]) -> Check:
    wrong = max(f.mismatched_batches for f in findings)
    if wrong:
        return Check(
            "labels",
            "invalid",
            f"{wrong} mini-batches whose labels at the last stage are not those of the first "
            "stage's inputs",
            {"mismatched": wrong},
        )
    return Check("labels", "ok", "labels belong to inputs in every mini-batch", {})


def _samples(findings: Sequence[Findings]) -> Check:
    repeated = max(f.repeated_samples for f in findings)
    if repeated:
        return Check(
            "samples",
            "invalid",
            f"{repeated} samples were seen more than once in an epoch: replicas are not sharded",
            {"repeated": repeated},
        )
    return Check("samples", "ok", "no sample was seen twice in an epoch", {})


def _replicas(findings: Sequence[Findings], layout: Layout) -> Check:
    wrong = max(f.unequal_gradients for f in findings)
    if wrong:
        return Check(
            "replicas",
            "invalid",
            f"gradient norms differed between replicas in {wrong} steps and stages",
            {"unequal": wrong},
        )
    return Check("replicas", "ok", f"one gradient on {layout.replicas} replicas", {})


def _gradients(findings: Sequence[Findings]) -> Check:
    """A stage with parameters must run backward and have a gradient that is not nothing."""
    silent = [
        f.rank
        for f in findings
        if f.parameters
        and (
            not f.median_grad_norm
            or not math.isfinite(f.median_grad_norm)
            or (f.walls and f.backward_s <= 0.0)
        )
    ]
    norms = {str(f.rank): f.median_grad_norm for f in findings}
    if silent:
        return Check(
            "gradients",
            "invalid",
            f"ranks {silent} have parameters but no gradient: backward did not reach them",
            norms,
        )
    return Check("gradients", "ok", "every stage with parameters has a gradient", norms)


def _loss(findings: Sequence[Findings]) -> Check:
    wrong = max(f.other_losses for f in findings)
    if wrong:
        return Check(
            "loss",
            "invalid",
            f"in {wrong} steps the loss that was differentiated is not the mean over labelled "
            "samples that is reported: summed micro-batches, or a mean of masked means",
            {"steps": wrong},
        )
    return Check("loss", "ok", "the loss reported is the one that was differentiated", {})


def _reductions(findings: Sequence[Findings], layout: Layout) -> Check:
    wanted = 1 if layout.replicas > 1 else 0
    wrong = [f.rank for f in findings if f.parameters and f.reductions != wanted * f.train_steps]
    if wrong:
        rank = findings[wrong[0]]
        return Check(
            "all-reduce",
            "suspect",
            f"rank {rank.rank} reduced {rank.reductions} times in {rank.train_steps} steps, "
            f"{wanted} a step expected",
            {},
        )
    return Check("all-reduce", "ok", f"{wanted} a step", {})


def _threads(findings: Sequence[Findings]) -> Check:
    wrong = [f.rank for f in findings if f.threads != f.threads_wanted]
    if wrong:
        f = findings[wrong[0]]
        return Check(
            "threads",
            "invalid",
            f"rank {f.rank} ran {f.threads} threads, {f.threads_wanted} were asked for",
            {},
        )
    by_host: dict[str, list[Findings]] = {}
    for f in findings:
        by_host.setdefault(f.host, []).append(f)
    crowded = []
    for host, ranks in by_host.items():
        cpus = {cpu for f in ranks for cpu in f.cpus}
        if sum(f.threads for f in ranks) > len(cpus):
            crowded.append(f"{host}: {sum(f.threads for f in ranks)} threads on {len(cpus)} CPUs")
    if crowded:
        return Check("oversubscribed", "suspect", "; ".join(crowded), {"hosts": crowded})
    counts = Counter(f.threads for f in findings)
    return Check("threads", "ok", f"threads a rank: {sorted(counts)}", {})


def _noise(findings: Sequence[Findings]) -> Check:
    """Processor time short of busy time on one thread, or time the host took, is noise."""
    reasons = []
    for f in findings:
        if f.steal_share is not None and f.steal_share > NOISY_SHARE:
            reasons.append(f"rank {f.rank}: {f.steal_share:.1%} stolen by the host")
        if f.threads == 1 and f.cpu_share is not None and f.cpu_share < 1 - NOISY_SHARE:
            reasons.append(f"rank {f.rank}: {f.cpu_share:.0%} processor time of busy time")
    values = {
        str(f.rank): {"cpu": f.cpu_share, "steal": f.steal_share, "switches": f.switches}
        for f in findings
    }
    if reasons:
        return Check("noisy", "suspect", "; ".join(reasons), values)
    return Check("noise", "ok", "processor time accounts for busy time", values)


def _drift(walls: Sequence[float]) -> Check:
    third = len(walls) // 3
    if third < 3:
        return Check("drift", "unknown", f"{len(walls)} steps are too few to tell", {})
    first = statistics.median(walls[:third])
    last = statistics.median(walls[-third:])
    change = last / first - 1
    values = {"first_third_s": first, "last_third_s": last}
    if abs(change) > DRIFT:
        return Check(
            "drift", "suspect", f"median step time changed {change:+.0%} over the run", values
        )
    return Check("drift", "ok", f"median step time changed {change:+.1%} over the run", values)


def _edges(graph: dict[str, Any]) -> Check:
    kept = float(graph["edges_kept"])
    detail = f"{graph['mode']} chunks kept {kept:.1%} of the edges"
    if kept < 1.0:
        return Check("edges-lost", "suspect", detail, {"edges_kept": kept})
    return Check("edges", "ok", detail, {"edges_kept": kept})
