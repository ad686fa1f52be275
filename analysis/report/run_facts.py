"""Facts of a report's numbers: what was run, on what, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from analysis.load.comparable import values_in_words
from analysis.load.run_data import RunData
from analysis.render.document import Block, Table, Text, rows_table
from gnnhpc.core.errors import InputError
from gnnhpc.core.run_paths import RunPaths
from gnnhpc.models.model_registry import model_class
from gnnhpc.records.accounted_cost import AccountedCost, read_accounted

_PROVENANCE = {
    "commit": "code",
    "command": "command",
    "spec": "sweep",
    "overrides": "overrides",
    "created_at": "submitted at",
    "host": "submitted on",
    "user": "submitted by",
    "versions": "versions",
}
_BATCHNORM = {
    "micro": "each micro-batch normalises by its own statistics, and running statistics are "
    "updated a micro-batch at a time, as GPipe does",
    "deferred": "each micro-batch normalises by its own statistics, and running statistics are "
    "updated once a mini-batch from all of its micro-batches",
}
_MOST_HOSTS = 12


def what_was_run(run: RunData) -> Iterator[Block]:
    """Commit, versions, machines, models, data and layouts; BatchNorm's modes; environments."""
    yield _facts_table(run)
    using = [
        bool((known := model_class(str(model))) and known.uses_batchnorm)
        for model in run.cells["model"]
    ]
    for mode, cells in run.cells.loc[using, "batchnorm"].value_counts().items():
        yield Text(
            f"BatchNorm, mode {mode} ({cells} cells): {_BATCHNORM.get(str(mode), mode)}. "
            "Evaluation uses running statistics that are synchronised over replicas."
        )
    every = list(run.environments.values())
    if names := dict.fromkeys(name for each in every for name in each):
        yield rows_table(
            "What numbers depend on besides settings; only cells with equal values are averaged "
            "and compared",
            ("what", "value (cells)"),
            [(name, values_in_words([each.get(name) for each in every])) for name in names],
        )


def _facts_table(run: RunData) -> Table:
    cells, provenance = run.cells, run.provenance
    rows: list[tuple[str, str]] = [("run", run.name)]
    if provenance is None:
        rows.append(("submitted", "unknown: the run has no provenance.json"))
    for key, words in _PROVENANCE.items():
        if key in (provenance or {}):
            rows.append((words, _provenance_text((provenance or {})[key])))
    hosts = sorted({host for text in cells["hosts"] for host in str(text).split(";") if host})
    more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
    rows += [
        ("models and data", ", ".join(sorted(set(cells["model"] + " on " + cells["data"])))),
        ("implementations", _distinct(cells["implementation"])),
        ("layouts", _distinct(cells["layout"])),
        ("ran on", ", ".join(hosts[:_MOST_HOSTS]) + more),
        ("attempts", _attempts_text(run)),
        ("it cost", cost_text(run)),
    ]
    return rows_table("What was run", ("what", "value"), [row for row in rows if row[1]])


def _provenance_text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {text}" for key, text in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value or "")


def _distinct(values: pd.Series[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if str(value)))


def _attempts_text(run: RunData) -> str:
    text = f"{int(run.cells['attempts'].sum())} for {len(run.cells)} cells"
    again = len(measured_again(run.attempts))
    if again:
        text += f"; {again} valid, of jobs that Slurm requeued after their result: the newer counts"
    return text


def measured_again(attempts: pd.DataFrame) -> pd.DataFrame:
    """The rows of `RunData.attempts` that are valid and that a later attempt of the same job
    replaced, as after a requeue by Slurm.
    """
    in_jobs = attempts[attempts["job"].notna() & attempts["valid"].astype(bool)]
    used = in_jobs["used"].astype(bool)
    theirs = set(zip(in_jobs[used]["cell"], in_jobs[used]["job"], strict=True))
    others = in_jobs[~used]
    places = zip(others["cell"], others["job"], strict=True)
    return others[pd.Series([place in theirs for place in places], others.index, dtype=bool)]


def cost_text(run: RunData) -> str:
    """Core-hours, CPU efficiency and energy, each where it is known; empty for a run never tried.

    What Slurm's accounting says is in the run folder once `status --cost` or a report job has asked
    it; several runs have their results alone.
    """
    parts = [] if run.runs else _accounted(RunPaths(run.root))
    known = run.attempts["core_s"].dropna()
    if len(known):
        parts.append(
            f"{known.sum() / 3600:.3g} core-hours of {len(known)} attempts, from their ranks' "
            "start to their results"
        )
    if unknown := len(run.attempts) - len(known):
        parts.append(f"of {unknown} attempts without a result it is not known")
    return "; ".join(parts)


def _accounted(paths: RunPaths) -> list[str]:
    try:
        cost = read_accounted(paths)
    except InputError as error:
        return [str(error)]
    return [] if cost is None else [_accounted_text(cost)]


def _accounted_text(cost: AccountedCost) -> str:
    text = f"{cost.core_s / 3600:.3g} core-hours of {cost.tasks} tasks"
    if cost.running:
        text += f", {cost.running} of them still running"
    text += f", as Slurm's accounting had them at {cost.at}"
    known = "unknown" if cost.efficiency is None else f"{cost.efficiency:.0%}"
    text += f"; CPU efficiency {known}"
    if cost.energy_j is not None:
        text += f"; {cost.energy_j / 3.6e6:.3g} kWh of the nodes while the ranks ran"
    return text
