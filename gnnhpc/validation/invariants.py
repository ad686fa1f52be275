"""Invariants of a run at its boundaries: what must be equal, unchanged, moved or counted.

Nothing of it happens inside a timed step. Tensors are hashed at the start, around evaluations, at
checkpoints and at the end; ranks compare their hashes in `checks`. Samples of mini-batches must be
those of the permutation that seed and epoch give, which covers an epoch without duplicates. Samples
of chunks of a graph and of its evaluation must be the same in every step, each on one replica.
"""

from __future__ import annotations

import random
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.distributed.mesh import Mesh
from gnnhpc.engines.gradient_sync import BucketedGradients
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.layers.batchnorm import BatchNorm
from gnnhpc.records.schema import Check, Phase
from gnnhpc.training.listeners import Listener, StepTaken
from gnnhpc.training.setup import TrainingParts
from gnnhpc.validation.reference.random_numbers import Ids, SampleSchedule
from gnnhpc.validation.verdicts import few, verdict_of

Hashes = dict[str, int]
"""CRC-32 of each tensor's bytes, by name."""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_GOOD = {
    "replica parameters": "replicas hold the same parameters",
    "evaluation": "evaluations changed no parameter and no buffer",
    "continuity": "parameters did not change between an evaluation and what followed it",
    "modes": "modules were in training mode in training and in evaluation mode in evaluation",
    "generators": "each rank's generators began with its seed",
    "running statistics": "BatchNorm counted each batch, and replicas evaluated with one mean",
    "optimizer": "the optimizer took each step",
    "all-reduce": "replicas averaged their gradients once a step",
    "order": "samples are those of the seed's permutation, and the same on all stages",
}
_MAY_BE_MEANT = ("modes", "evaluation")
"""A custom model's layers may do so on purpose: these are suspect, not invalid."""


@dataclass
class _Observed:
    """What one rank reports to the others since they last compared."""

    hashes: defaultdict[str, dict[str, Hashes]] = field(default_factory=lambda: defaultdict(dict))
    """Check -> time of hashing -> hashes of what replicas must have in common."""
    faults: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Check -> faults."""
    checksums: dict[str, int] = field(default_factory=dict)
    """Step -> checksum of its batch."""
    covered: dict[Phase, Ids] = field(default_factory=dict)
    """Samples of the first step of a phase without a schedule."""


class Invariants(Listener):
    """Observes one rank's training; `checks` is a collective that all ranks call together."""

    def __init__(self, experiment: Experiment, mesh: Mesh, parts: TrainingParts) -> None:
        self._experiment, self._mesh, self._parts = experiment, mesh, parts
        self._stage, self._optimizer = parts.stage, parts.optimizer
        self._observed = _Observed()
        self._known: defaultdict[str, list[str]] = defaultdict(list)
        """Faults of all ranks until the last call of `checks`."""
        self._start = self._trained = self._microbatches = 0
        self._mode_checked = False
        self._held: Hashes = {}
        self._evaluated: Hashes | None = None
        """Parameters after the last evaluation, if no training step followed it yet."""
        self._tracked: dict[str, int] = {}
        self._reductions = 0
        self._schedules: dict[Phase, SampleSchedule] = {}
        batches = parts.batches
        if experiment.batch_size is not None:
            self._schedules["train"] = SampleSchedule(experiment, batches.total_samples)
        if isinstance(batches, ImageBatches) and experiment.test_steps:
            self._schedules["test"] = SampleSchedule(experiment, len(batches.images["test"]))
        self._unchanged: dict[Phase, Ids] = {}
        self._test_steps = 0
        """Since the evaluation began."""

    def training_begins(self, start: int) -> None:
        self._start = start
        self._observed.hashes["replica parameters"]["the start"] = self._parameters()
        self._tracked = {name: int(norm.num_batches_tracked) for name, norm in self._batchnorms()}
        self._reductions = self._parts.engine.gradients.reductions
        if not start and torch.initial_seed() != expected_seed(self._experiment, self._mesh):
            cause = f"torch's generator began with seed {torch.initial_seed()}"
            self._fault("generators", cause)

    def step_taken(self, taken: StepTaken) -> None:
        self._check_samples(taken)
        if taken.phase != "train":
            self._test_steps += 1
            return
        self._trained += 1
        self._microbatches += len(taken.batch.microbatches)
        self._evaluated = None
        if not self._mode_checked:
            # Modes change at evaluations only, so that one step after each is enough.
            self._mode_checked = True
            self._check_modes(training=True, when=f"train step {taken.step}")

    def evaluation_begins(self) -> None:
        when = f"the evaluation after step {self._start + self._trained}"
        self._test_steps = 0
        self._held = self._parameters() | self._buffers()
        # Replicas have averaged their running statistics now.
        self._observed.hashes["running statistics"][when] = {
            name: value for name, value in self._held.items() if name.endswith(_STATISTICS)
        }
        self._check_modes(training=False, when=when)

    def evaluation_ended(self) -> None:
        when = f"the evaluation after step {self._start + self._trained}"
        changed = _differing(self._held, self._parameters() | self._buffers())
        if changed:
            self._fault("evaluation", f"{few(changed)} changed in {when}")
        self._check_modes(training=False, when=f"the end of {when}")
        self._evaluated = self._parameters()
        self._mode_checked = False

    def training_ended(self, step: int) -> None:
        self.between_steps("the end")

    def between_steps(self, moment: str) -> None:
        """Hash and count at a checkpoint or at the end, after a step of all ranks."""
        held = self._observed.hashes["replica parameters"][moment] = self._parameters()
        changed = [] if self._evaluated is None else _differing(self._evaluated, held)
        if changed:
            self._fault("continuity", f"{few(changed)} changed between an evaluation and {moment}")
        self._check_statistics()
        self._check_optimizer()
        self._check_reductions()

    def checks(self) -> list[Check]:
        """Compare all ranks and return one check an invariant, on every rank; a collective."""
        everyone: list[_Observed] = self._mesh.gather_objects(self._observed)
        for rank, observed in enumerate(everyone):
            for name, faults in observed.faults.items():
                self._known[name] += [f"rank {rank}: {fault}" for fault in faults]
        layout = self._mesh.layout
        for stage in range(layout.stages):
            for name in ("replica parameters", "running statistics"):
                hashes = [everyone[rank].hashes[name] for rank in layout.replica_ranks(stage)]
                self._known[name] += _unequal(hashes, stage)
        self._known["order"] += list(self._other_samples(everyone))
        self._observed = _Observed()
        suspect = _MAY_BE_MEANT if isinstance(self._experiment.model, CustomModel) else ()
        return [
            verdict_of(name, self._known[name], good, is_suspect=name in suspect)
            for name, good in _GOOD.items()
        ]

    def _other_samples(self, everyone: Sequence[_Observed]) -> Iterator[str]:
        """Samples that two replicas have, and stages that have other batches than the first."""
        layout = self._mesh.layout
        replicas = [everyone[rank] for rank in layout.replica_ranks(0)]
        for phase in replicas[0].covered:
            together = np.concatenate([each.covered[phase] for each in replicas])
            twice = len(together) - len(np.unique(together))
            if twice:
                yield f"{phase}: {twice} samples are used twice, replicas overlap"
        for replica, first in enumerate(replicas):
            for stage, rank in enumerate(layout.pipeline_ranks(replica)):
                other = everyone[rank].checksums
                steps = [step for step, one in first.checksums.items() if other.get(step) != one]
                if steps:
                    yield (
                        f"replica {replica}, {steps[0]}: stages 0 and {stage} have different "
                        "batches, so that labels do not belong to inputs"
                    )

    def _check_samples(self, taken: StepTaken) -> None:
        phase, ids, when = taken.phase, taken.batch.sample_ids, f"{taken.phase} step {taken.step}"
        self._observed.checksums[when] = taken.batch.checksum
        schedule = self._schedules.get(phase)
        if schedule is not None:
            step = taken.step if phase == "train" else self._test_steps
            if not np.array_equal(ids, schedule.share(step, self._mesh.replica)):
                expected = f"the permutation of epoch {schedule.epoch(step)}"
                self._fault("order", f"{when}: the samples are not those of {expected}")
        elif np.array_equal(self._unchanged.setdefault(phase, ids), ids):
            self._observed.covered.setdefault(phase, ids)
        else:
            self._fault("order", f"{when}: the samples are not those of the steps before")

    def _check_modes(self, *, training: bool, when: str) -> None:
        wrong = [
            name or "the stage"
            for name, module in self._stage.named_modules()
            if module.training is not training
        ]
        if wrong:
            mode = "evaluation" if training else "training"
            self._fault("modes", f"{few(wrong)} in {mode} mode at {when}")

    def _check_statistics(self) -> None:
        """Our BatchNorm counts every micro-batch, or every mini-batch where it is deferred."""
        for name, norm in self._batchnorms():
            counted = int(norm.num_batches_tracked) - self._tracked[name]
            expected = self._microbatches if norm.mode == "micro" else self._trained
            if counted != expected:
                cause = f"{name} counted {counted} batches, {expected} were trained on"
                self._fault("running statistics", cause)

    def _check_optimizer(self) -> None:
        """Adam counts its steps."""
        steps = self._start + self._trained
        for name, parameter in self._stage.named_parameters():
            state = self._optimizer.state.get(parameter, {}) if self._optimizer else {}
            if "step" in state and int(state["step"]) != steps:
                cause = f"counts {int(state['step'])} steps of {name}, {steps} were taken"
                self._fault("optimizer", cause)

    def _check_reductions(self) -> None:
        gradients = self._parts.engine.gradients
        trains = any(p.requires_grad for p in self._stage.parameters())
        a_step = 1 if trains and self._mesh.layout.replicas > 1 else 0
        if a_step and isinstance(gradients, BucketedGradients):
            a_step = len(gradients.buckets)
        counted = gradients.reductions - self._reductions
        if counted != a_step * self._trained:
            cause = f"{counted} all-reduces in {self._trained} steps, {a_step} a step are planned"
            self._fault("all-reduce", cause)

    def _parameters(self) -> Hashes:
        return _hashes(self._stage.named_parameters())

    def _buffers(self) -> Hashes:
        return _hashes(self._stage.named_buffers())

    def _batchnorms(self) -> list[tuple[str, BatchNorm]]:
        modules = self._stage.named_modules()
        if isinstance(self._experiment.model, CustomModel):
            return []
        return [(name, module) for name, module in modules if isinstance(module, BatchNorm)]

    def _fault(self, name: str, cause: str) -> None:
        self._observed.faults[name].append(cause)


def expected_seed(experiment: Experiment, mesh: Mesh) -> int:
    """The seed of a rank's generators, which layers of a custom model may draw from."""
    return random.Random(f"gnnhpc/{experiment.seed}/{mesh.rank}").getrandbits(63)


def _hashes(named: Iterable[tuple[str, Tensor]]) -> Hashes:
    return {
        name: zlib.crc32(
            tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        )
        for name, tensor in named
    }


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _unequal(by_replica: Sequence[Mapping[str, Hashes]], stage: int) -> list[str]:
    """Where the replicas of a stage hold different tensors, at each time of hashing."""
    first, *others = by_replica
    return [
        f"{few(names)} of stage {stage} differ between replicas 0 and {replica} at {moment}"
        for replica, other in enumerate(others, 1)
        for moment in first
        if (names := _differing(first[moment], other.get(moment, {})))
    ]
