"""What is told of a run: times in files as they were measured, samples as they were planned."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from gnnhpc.records.writer import Written


def written(
    observations: Sequence[RankObservations],
    files: Sequence[Written],
    differing: Sequence[str | None],
) -> Check:
    """`files` are in the order of the ranks; the sums are of the same numbers in the same order.

    `differing` says of each rank's file, read back, how it is not what was measured. What was
    measured and is no number is for the audit of times to say.
    """
    wrong = [
        f"{file.file} has {file.steps_s:.6f} s of steps, rank {each.rank} measured "
        f"{each.all_steps_s:.6f} s"
        for each, file in zip(observations, files, strict=True)
        if not math.isclose(file.steps_s, each.all_steps_s, rel_tol=1e-9)
        and not math.isnan(each.all_steps_s)
    ]
    wrong += [each for each in differing if each is not None]
    if wrong:
        return Check("records", "invalid", "; ".join(wrong), {})
    return Check("records", "ok", "files have what was measured", {})


def throughput(
    experiment: Experiment, observations: Sequence[RankObservations], samples_per_step: int
) -> Check:
    """Samples a second are counted in the samples that all replicas together have in a step."""
    if experiment.batch_size is None:
        wanted, whose = experiment.data.facts().nodes, "the nodes of the graph"
    else:
        replicas = experiment.layout.replicas
        wanted = experiment.batch_size * replicas
        whose = f"{experiment.batch_size} of each of {replicas} replicas"
    wrong = [f"rank {each.rank}: {fault}" for each in observations for fault in each.wrong_samples]
    if wrong:
        return Check("throughput", "invalid", "; ".join(wrong), {"planned": wanted})
    if samples_per_step != wanted:
        detail = f"{samples_per_step} samples a step are told, {wanted} are {whose}"
        return Check("throughput", "invalid", detail, {"told": samples_per_step, "planned": wanted})
    return Check("throughput", "ok", f"{wanted} samples a step, {whose}", {})
