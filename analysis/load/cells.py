"""Rows of `RunData.cells`: settings, status and results as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from analysis.load.comparable import RUN_FOLDER
from analysis.load.run_folders import StoredCell
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.failures import recorded_cause

_NOT_SETTINGS = {"seed", "repeat", "spans", "save_every", "check", "profile_steps"}
"""Fields that repeat a measurement, or only change what is recorded and validated."""
_TRAINED = ("train_nodes", "train_links", "train_graphs")
"""What an epoch consists of, by kind of data."""


def flat_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that determine what is measured, as one flat mapping.

    Keys of the model and of the data have a prefix, such as `model_blocks`. Those of sampling have
    none, such as `sampler`, and only sampled cells have them.
    """
    flat: dict[str, Any] = {}
    for key, value in experiment.model_dump(mode="json").items():
        if key in _NOT_SETTINGS:
            continue
        if key == "sampling":
            flat |= {inner: _groupable(content) for inner, content in (value or {}).items()}
        elif isinstance(value, dict):
            flat |= {f"{key}_{inner}": _groupable(content) for inner, content in value.items()}
        else:
            flat[key] = _groupable(value)
    for key in ("model_name", "data_name", *(f"data_{key}" for key in experiment.data.elsewhere)):
        del flat[key]
    flat["implementation"] = flat.pop("model_implementation", "custom")
    return flat | {"model": experiment.model.label, "data": experiment.data.label}


def _groupable(value: Any) -> Any:
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value


def cell_row(stored: StoredCell) -> dict[str, Any]:
    """One row of `RunData.cells`; missing values are None."""
    used, headers = stored.used, stored.headers
    experiment, layout = stored.plan.experiment, stored.plan.experiment.layout
    result = used.result if used and not used.damage else None
    graph = result.graph if result else {}
    return {
        "cell": stored.name,
        RUN_FOLDER: stored.run,
        **flat_settings(experiment),
        "stages": layout.stages,
        "replicas": layout.replicas,
        "world_size": experiment.process_layout.world_size,
        "seed": experiment.seed,
        "repeat": experiment.repeat,
        "attempt": used.number if used else None,
        "attempts": stored.attempts,
        "status": used.status if used else "missing",
        "valid": bool(used and used.valid),
        "checks": len(result.audit) if result else 0,
        "checked": ";".join(
            check.name
            for check in (result.audit if result else ())
            if check.verdict not in ("unknown", "inconclusive")
        ),
        "started_at": result.started_at if result else "",
        "validation_s": result.validation.get("seconds") if result else None,
        "attempt_s": result.validation.get("attempt_s") if result else None,
        "edges_kept": graph.get("edges_kept"),
        **(_epoch(graph) if experiment.epochs_end_unevenly else {}),
        "hosts": ";".join(sorted({h["host"] for h in headers})),
        "code_from": ";".join(sorted({str(h["code_from"]) for h in headers if h.get("code_from")})),
        "failure": _failure(stored),
        **(result.final if result else {}),
    }


def _epoch(graph: Mapping[str, Any]) -> dict[str, Any]:
    trained = next((graph[name] for name in _TRAINED if name in graph), None)
    return {"train_samples": trained, "steps_per_epoch": graph.get("steps_per_epoch")}


def _failure(stored: StoredCell) -> str | None:
    """Damage, the failure in the result, or without one what the attempt wrote before it died."""
    used = stored.used
    if used is None or used.damage:
        return used.damage if used else None
    world_size = stored.plan.experiment.process_layout.world_size
    failure = used.result.failure if used.result else recorded_cause(used.paths, world_size)
    if failure is None:
        return None
    step = f" at {failure.phase} step {failure.step}" if failure.step is not None else ""
    return f"rank {failure.rank} on {failure.host}{step}: {failure.error}"
