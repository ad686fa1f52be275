"""Rows of `Run.cells` and `Run.attempts`: settings, status and results as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from analysis.loading.attempts import Attempt, resume_point
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.cost import attempt_core_s
from gnnhpc.records.failures import recorded_cause
from gnnhpc.records.schema import Failure, Result

# Fields of an experiment that repeat a measurement or only change what is recorded.
_NOT_SETTINGS = {"seed", "repeat", "spans", "save_every"}
SELF_CHECK = "self-check"
_GRAPH = ("edges_kept", "node_redundancy", "edge_redundancy")
_TRAINED = ("train_nodes", "train_links", "train_graphs")
"""What an epoch is all of, by kind of data."""


def flat_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that determine what is measured, as one flat mapping.

    Keys of the model and of the data are prefixed, such as `model_blocks`; those of sampling are
    bare, such as `sampler`, and only sampled cells have them.
    """
    flat: dict[str, Any] = {}
    for key, value in experiment.model_dump(mode="json").items():
        if key in _NOT_SETTINGS:
            continue
        if key == "sampling":
            flat |= {inner: _plain(content) for inner, content in (value or {}).items()}
        elif isinstance(value, dict):
            flat |= {f"{key}_{inner}": _plain(content) for inner, content in value.items()}
        else:
            flat[key] = _plain(value)
    for key in ("model_name", "data_name", *(f"data_{key}" for key in experiment.data.elsewhere)):
        del flat[key]
    # A user's own model says nothing of whose code computes a layer: it is the user's.
    flat["implementation"] = flat.pop("model_implementation", "own")
    return flat | {"model": experiment.model.label, "data": experiment.data.label}


def _plain(value: Any) -> Any:
    """A value that rows can be grouped by."""
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value


def cell_row(
    cell: Cell,
    used: Attempt | None,
    attempts: list[Attempt],
    headers_of: Mapping[int, list[dict[str, Any]]],
) -> dict[str, Any]:
    """One row of `Run.cells`; missing values are None.

    `headers_of` are the ranks' headers by attempt: of the one that is used and of those that it
    resumed.
    """
    headers = [header for found in headers_of.values() for header in found]
    experiment, layout = cell.experiment, cell.experiment.layout
    result = used.result if used and not used.damage else None
    graph = result.graph if result else {}
    return {
        "cell": cell.id,
        "array": cell.array,
        "index": cell.index,
        **flat_settings(experiment),
        "stages": layout.stages,
        "replicas": layout.replicas,
        "world_size": experiment.process_layout.world_size,
        "seed": experiment.seed,
        "repeat": experiment.repeat,
        "attempt": used.number if used else None,
        "attempts": len(attempts),
        "status": used.status if used else ("unfinished" if attempts else "missing"),
        "valid": bool(result and result.valid),
        "started_at": result.started_at if result else "",
        **_self_check(result),
        "samples_per_step": result.samples_per_step if result else None,
        "train_steps_done": result.train_steps if result else None,
        "test_steps_done": result.test_steps if result else None,
        "stage_layers": json.dumps(result.layout.get("balance")) if result else None,
        **{name: graph.get(name) for name in _GRAPH},
        **(_epoch(graph) if experiment.epochs_end_unevenly else {}),
        "hosts": ";".join(sorted({h["host"] for h in headers})),
        "cpu_model": ";".join(sorted({h["cpu_model"] for h in headers})),
        "code_from": ";".join(sorted({str(h["code_from"]) for h in headers if h.get("code_from")})),
        "threads": max((h["threads"] for h in headers), default=None),
        "parameters": _parameters_of_replica(headers),
        "startup_s": max(map(_startup_s, headers), default=None),
        "failure": _failure_of_cell(cell, result, attempts),
        **(result.final if result else {}),
    }


def _epoch(graph: Mapping[str, Any]) -> dict[str, Any]:
    trained = next((graph[name] for name in _TRAINED if name in graph), None)
    return {"train_samples": trained, "steps_per_epoch": graph.get("steps_per_epoch")}


def _self_check(result: Result | None) -> dict[str, Any]:
    """What the comparison with a twin at the start of the attempt found, and its share of time."""
    for check in result.audit if result else ():
        if check.name == SELF_CHECK:
            return {"self_check": check.verdict, "self_check_share": check.values.get("share")}
    return {"self_check": None, "self_check_share": None}


def _startup_s(header: dict[str, Any]) -> float:
    """Seconds from process start to the first step: the recorded total, else the sum of parts."""
    parts: dict[str, float] = header["startup_s"]
    return parts.get("total", sum(parts.values()))


def _parameters_of_replica(headers: list[dict[str, Any]]) -> int | None:
    """The number of parameters of one replica, in the newest attempt."""
    if not headers:
        return None
    newest = max(h["attempt"] for h in headers)
    mine = [h for h in headers if h["attempt"] == newest and h["replica"] == 0]
    return sum(int(h["parameters"]) for h in mine)


def _failure_of_cell(cell: Cell, result: Result | None, attempts: list[Attempt]) -> str | None:
    """Of the result; without any, what the newest attempt has written before it died."""
    if result is not None:
        return failure_text(result.failure)
    ended = any(attempt.result is not None or attempt.damage for attempt in attempts)
    return None if ended or not attempts else _recorded_failure(cell, attempts[-1])


def _recorded_failure(cell: Cell, attempt: Attempt) -> str | None:
    return failure_text(recorded_cause(attempt.paths, cell.experiment.process_layout.world_size))


def failure_text(failure: Failure | None) -> str | None:
    """The failing rank, its host, step and error, in one line."""
    if failure is None:
        return None
    step = f" at {failure.phase} step {failure.step}" if failure.step is not None else ""
    return f"rank {failure.rank} on {failure.host}{step}: {failure.error}"


def attempt_row(cell: Cell, attempt: Attempt, used: Attempt | None) -> dict[str, Any]:
    """One row of `Run.attempts`."""
    result = attempt.result
    origin = None if attempt.damage else resume_point(attempt)
    return {
        "cell": cell.id,
        "attempt": attempt.number,
        "status": attempt.status,
        "valid": attempt.valid,
        "used": used is not None and used.number == attempt.number,
        "resumed_from": f"{origin.attempt}:{origin.step}" if origin else None,
        "job": result.slurm_job if result else None,
        "failure": attempt.damage
        or (failure_text(result.failure) if result else _recorded_failure(cell, attempt)),
        "core_s": attempt_core_s(result) if result else None,
    }
