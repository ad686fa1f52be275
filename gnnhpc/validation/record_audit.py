"""Audits the record files and the result of an attempt. Free of torch.

All checks are pure functions of the files, so that the worker at the end of an attempt and
`gnnhpc check` months later find the same. Checks of noise, drift and processors are in `noise`.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import Check
from gnnhpc.validation.audit.noise import affinity, drift, noise, shared_node, threads
from gnnhpc.validation.audit.rank_records import AttemptRecords, StepKey, read_attempt
from gnnhpc.validation.audit.step_times import barriers, between_steps, schedule, spans, step_times
from gnnhpc.validation.verdicts import few, verdict_of

_EQUAL_ON_ALL_RANKS = ("cell", "attempt", "world_size", "code", "code_from", "versions")
_COMPUTING_CODE = ("implementation", "kernels", "cpu_model", "cpu_capability", "variables")


def audit_attempt(paths: AttemptPaths) -> list[Check]:
    """Audit one attempt by its folder; empty if the attempt has no result or is not done."""
    try:
        result = Result.read(paths.result)
    except FileNotFoundError:
        return []
    except InputError as error:
        return [Check("records", "invalid", str(error))]
    if result.status != "done":
        return []
    return audit_records(paths, result)


def audit_records(paths: AttemptPaths, result: Result) -> list[Check]:
    """Audit the files of an attempt that is done against its `result`, whose audit may be empty."""
    integrity = files_unchanged(paths, result)
    if integrity.verdict != "ok":
        return [integrity]
    try:
        attempt = read_attempt(paths, result)
    except InputError as error:
        return [Check("records", "invalid", str(error))]
    checks: list[Callable[[AttemptRecords], Check]] = [
        *(headers, same_code, step_counts, step_times, spans, schedule, barriers),
        *(between_steps, losses, throughput, edges_kept),
        *(threads, affinity, noise, drift),
    ]
    return [integrity, *(check(attempt) for check in checks), *shared_node(result)]


def files_unchanged(paths: AttemptPaths, result: Result) -> Check:
    """Compare each record file with the size and digest that the result has of it."""
    expected = {paths.records(n).name for n in range(int(result.layout["world_size"]))}
    faults = [f"the result has no digest of {name}" for name in expected - result.records.keys()]
    for name, entry in result.records.items():
        try:
            content = (paths.root / name).read_bytes()
        except OSError as error:
            faults.append(f"{name} is unreadable ({error.strerror})")
            continue
        written = content[: entry["size"]]
        if len(written) < entry["size"]:
            faults.append(f"{name} has {len(written)} bytes of {entry['size']} written")
        elif hashlib.sha256(written).hexdigest() != entry["sha256"]:
            faults.append(f"{name} changed since it was written")
    return verdict_of("records", faults, f"{len(result.records)} files are as they were written")


def headers(attempt: AttemptRecords) -> Check:
    """The headers name the ranks of this attempt, and agree with the result."""
    result, faults = attempt.result, []
    stages = int(result.layout["world_size"]) // attempt.replicas
    for number, rank in enumerate(attempt.ranks):
        header = rank.header
        named = (header.cell, header.attempt, header.rank, header.world_size)
        if named != (result.cell, result.attempt, number, len(attempt.ranks)):
            faults.append(f"{rank.file} is of rank {header.rank} of {header.cell}")
        if (header.replica, header.stage) != divmod(number, stages):
            faults.append(f"{rank.file} is of replica {header.replica}, stage {header.stage}")
    hosts, first = [rank.header.host for rank in attempt.ranks], attempt.ranks[0].header
    expected = {"hosts": hosts, "code": first.code, "versions": first.versions}
    recorded = result.provenance
    faults += [
        f"the result has {name} {recorded[name]}, the ranks' files have {value}"
        for name, value in expected.items()
        if name in recorded and recorded[name] != value
    ]
    missing = sorted(expected.keys() - recorded.keys())
    if missing and not faults:
        return Check("headers", "unknown", f"the result does not say its {few(missing)}")
    return verdict_of("headers", faults, "each rank's file is of this attempt")


def same_code(attempt: AttemptRecords) -> Check:
    """All ranks ran the same code, packages and kernels on the same kind of CPU."""
    first, *others = (rank.header for rank in attempt.ranks)
    faults = []
    for other in others:
        for name in (*_EQUAL_ON_ALL_RANKS, *_COMPUTING_CODE):
            one, another = getattr(first, name), getattr(other, name)
            if not _same(name, one, another):
                faults.append(
                    f"rank {other.rank} on {other.host} has {name} {_shown(another, one)}, "
                    f"rank 0 on {first.host} has {_shown(one, another)}"
                )
    return verdict_of("same code", faults, "all ranks ran the same code on the same kind of CPU")


def _shown(value: object, other: object) -> str:
    """A value; of a mapping the entries in which the other one differs."""
    if isinstance(value, dict) and isinstance(other, dict):
        value = {key: each for key, each in value.items() if each != other.get(key)}
    return str(value)


def _same(name: str, one: object, other: object) -> bool:
    """Stages may need different kernels; those that both have must be the same."""
    if name == "kernels" and isinstance(one, dict) and isinstance(other, dict):
        return all(one[key] == other[key] for key in one.keys() & other.keys())
    return one == other


def step_counts(attempt: AttemptRecords) -> Check:
    """Every rank took the planned steps, each once and in order."""
    planned, result = planned_steps(attempt), attempt.result
    faults = []
    for rank in attempt.ranks:
        pairs = enumerate(itertools.zip_longest(rank.keys, planned))
        difference = next(((n, a, p) for n, (a, p) in pairs if a != p), None)
        if difference is not None:
            number, actual, plan = difference
            faults.append(
                f"rank {rank.rank}: step {number} of its file is {_named(actual)}, planned is "
                f"{_named(plan)}"
            )
    counted = result.train_steps, result.test_steps
    tested = max((step + 1 for phase, step in planned if phase == "test"), default=0)
    expected = int(result.experiment["train_steps"]), tested
    if planned and counted != expected:
        faults.append(f"the result counts {counted} steps to train and test, planned {expected}")
    return verdict_of("step counts", faults, f"each rank took the {len(planned)} planned steps")


def planned_steps(attempt: AttemptRecords) -> list[StepKey]:
    """The steps of an attempt: training with an evaluation after each `test_every` and the last.

    Steps of the test phase count over the whole run, so that those of an attempt that resumed
    begin behind those of the evaluations before its checkpoint.
    """
    experiment = attempt.result.experiment
    total, tests = int(experiment["train_steps"]), int(experiment["test_steps"])
    every = int(experiment["test_every"] or total)
    steps: list[StepKey] = []
    tested = attempt.start // every * tests
    for step in range(attempt.start, total):
        steps.append(("train", step))
        if (step + 1) % every == 0 or step + 1 == total:
            steps += [("test", tested + number) for number in range(tests)]
            tested += tests
    return steps


def _named(key: StepKey | None) -> str:
    return f"{key[0]} step {key[1]}" if key else "none"


def losses(attempt: AttemptRecords) -> Check:
    """Every replica reports a loss in each step, all the same finite number, and its metrics."""
    faults = []
    for number, steps in enumerate(zip(*(rank.steps for rank in attempt.ranks), strict=False)):
        reported = [each for each in steps if each.loss is not None]
        place = f"{steps[0].phase} step {steps[0].step}"
        if len(reported) != attempt.replicas:
            faults.append(f"{place}: {len(reported)} of {attempt.replicas} replicas have a loss")
            continue
        if not all(math.isfinite(each.loss or 0.0) for each in reported):
            faults.append(f"{place}: the loss is not finite")
        common = [(each.loss, _common_metrics(each.metrics)) for each in reported]
        if any(each != common[0] for each in common):
            faults.append(f"{place}: replicas report different losses or metrics")
        if number and len(faults) > 3:
            break
    return verdict_of("losses", faults, f"{attempt.replicas} replicas report the same losses")


def _common_metrics(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name != "replica_loss"}


def throughput(attempt: AttemptRecords) -> Check:
    """Steps have the planned samples, the same on all stages of a replica."""
    faults, result = [], attempt.result
    for steps in zip(*(rank.steps for rank in attempt.ranks), strict=False):
        by_replica: dict[int, set[int]] = {}
        for rank, step in zip(attempt.ranks, steps, strict=True):
            by_replica.setdefault(rank.header.replica, set()).add(step.samples)
        place = f"{steps[0].phase} step {steps[0].step}"
        if any(len(samples) > 1 for samples in by_replica.values()):
            faults.append(f"{place}: stages of a replica have different numbers of samples")
            continue
        shares = [samples.pop() for _, samples in sorted(by_replica.items())]
        planned = _planned_shares(attempt, steps[0].step)
        if steps[0].phase == "train" and planned is not None and shares != planned:
            faults.append(f"{place}: replicas have {shares} samples, planned are {planned}")
    expected = _samples_per_step(attempt)
    if result.samples_per_step != expected:
        faults.append(f"the result has {result.samples_per_step} samples a step, not {expected}")
    return verdict_of("throughput", faults, f"{expected} samples a step")


def _samples_per_step(attempt: AttemptRecords) -> int:
    """Samples of a full mini-batch of all replicas, or the nodes that all chunks own."""
    batch_size = attempt.result.experiment["batch_size"]
    if batch_size is not None:
        return int(batch_size) * attempt.replicas
    return sum(attempt.result.graph["own"])


def _planned_shares(attempt: AttemptRecords, step: int) -> list[int] | None:
    """Samples of each replica in a training step; None where chunks of a graph are not equal."""
    batch_size, replicas = attempt.result.experiment["batch_size"], attempt.replicas
    if batch_size is None:
        return None
    together = int(batch_size) * replicas
    counts = (attempt.result.graph.get(f"train_{kind}") for kind in ("nodes", "links", "graphs"))
    samples = next((int(count) for count in counts if count is not None), together)
    size = min(together, samples - step % -(-samples // together) * together)
    ends = [size * replica // replicas for replica in range(replicas + 1)]
    return [stop - start for start, stop in itertools.pairwise(ends)]


def edges_kept(attempt: AttemptRecords) -> Check:
    """Flags `edges-lost` where chunks of a graph leave out edges between them."""
    kept = attempt.result.graph.get("edges_kept")
    if kept is None:
        return Check("edges", "ok", "mini-batches are not chunks of a graph")
    detail = f"{attempt.result.graph['mode']} chunks kept {float(kept):.1%} of the edges"
    if float(kept) < 1.0:
        return Check("edges-lost", "suspect", detail, {"edges_kept": kept})
    return Check("edges", "ok", detail, {"edges_kept": kept})
