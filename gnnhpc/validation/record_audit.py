"""Audits the record files and the result of an attempt. Free of torch.

All checks are pure functions of the files, so that the worker at the end of an attempt and
`gnnhpc check` months later find the same. Checks of noise, drift and processors are in `audit/`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable

from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import AttemptPaths
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import Check
from gnnhpc.validation.audit.drift import drift
from gnnhpc.validation.audit.noise_flags import noise, shared_node, threads
from gnnhpc.validation.audit.rank_records import AttemptRecords, StepKey, read_attempt
from gnnhpc.validation.audit.step_times import (
    barriers,
    between_steps,
    recompilations,
    schedule,
    step_times,
)
from gnnhpc.validation.verdicts import verdict_of

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
        *(same_code, step_counts, step_times, schedule, barriers, between_steps, edges_kept),
        *(plain_torch, not_replayed, recompilations, threads, noise, drift),
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


def plain_torch(attempt: AttemptRecords) -> Check:
    """Flags fused layers that torch's operations compute, as where a node has no C++ compiler."""
    faults = []
    for header in (rank.header for rank in attempt.ranks):
        statuses = (header.kernels or {}).items()
        why = next((f"{name}: {text}" for name, text in statuses if text.startswith("none")), None)
        if why is not None and (header.implementation or "").endswith("/torch"):
            faults.append(f"rank {header.rank} computes layers without kernels ({why})")
    return verdict_of("plain-torch", faults, "kernels compute the layers", is_suspect=True)


def not_replayed(attempt: AttemptRecords) -> Check:
    """Flags steps on a GPU that a capture as a CUDA graph was tried for and refused."""
    faults = [
        f"rank {rank.rank}: {phase} steps are not replayed ({text.removeprefix('eager: ')})"
        for rank in attempt.ranks
        for phase, text in rank.cuda_graphs.items()
        if phase != "all" and text.startswith("eager: ")
    ]
    good = "no step was to be replayed and is computed"
    return verdict_of("not-replayed", faults, good, is_suspect=True)


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
        taken = ((step.phase, step.step) for step in rank.steps)
        pairs = enumerate(itertools.zip_longest(taken, planned))
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


def edges_kept(attempt: AttemptRecords) -> Check:
    """Flags `edges-lost` where chunks of a graph leave out edges between them."""
    kept = attempt.result.graph.get("edges_kept")
    if kept is None:
        return Check("edges", "ok", "mini-batches are not chunks of a graph")
    detail = f"{attempt.result.graph['mode']} chunks kept {float(kept):.1%} of the edges"
    if float(kept) < 1.0:
        return Check("edges-lost", "suspect", detail)
    return Check("edges", "ok", detail)
