"""Compares implementations: ours with PyG's and DGL's, all other settings being equal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.load.comparable import differences
from analysis.summary.baseline_and_speedup import same_value
from analysis.summary.configurations import Configuration
from analysis.summary.settings_in_words import (
    COMPILED,
    IMPLEMENTATIONS,
    settings_in_words,
    varying_settings,
)
from analysis.summary.summary_table import Summary, counted_flags

_NAMED = ("implementation", "sampler", "compile")
DEPENDS_ON_IMPLEMENTATION = {"implementation", "kernels", "transfers"}


def find_like(
    row: Configuration, rows: Iterable[Configuration], changes: Mapping[str, Any]
) -> Configuration | None:
    """The measured row with these settings that equals `row` in all others.

    It has the same phase, and the same environment but for what the implementation decides. None
    where there is no such row.
    """
    requested = {**row.settings, **changes}
    return next(
        (
            other
            for other in rows
            if other is not row
            and other.phase == row.phase
            and other.step_times
            and all(same_value(other.settings[k], v) for k, v in requested.items())
            and not differences(row.environment, other.environment).keys()
            - DEPENDS_ON_IMPLEMENTATION
        ),
        None,
    )


def frameworks_frame(summary: Summary) -> pd.DataFrame:
    """A row a configuration that was trained in our form and in a library's; empty without any.

    Milliseconds a step of each, and how many times as fast ours is, with intervals, and the flags
    of the cells of each.
    """
    cells, rows = summary.run.cells, summary.configurations
    if cells.empty or cells["implementation"].nunique() < 2:
        return pd.DataFrame()
    names = [name for name in varying_settings(summary.table) if name not in _NAMED]
    found = [_compared_with_libraries(row, rows, names) for row in rows if _is_ours(row)]
    return pd.DataFrame([line for line in found if line])


def _is_ours(row: Configuration) -> bool:
    """Computed by our layers, and drawn by our sampler where it is sampled."""
    sampler = row.settings.get("sampler")
    if row.phase != "train" or not (pd.isna(sampler) or sampler == "ours"):
        return False
    return row.settings["implementation"] == "fused" and bool(row.step_times)


def _compared_with_libraries(
    row: Configuration, rows: Sequence[Configuration], names: Sequence[str]
) -> dict[str, Any]:
    """Empty where no library computed the same."""
    line: dict[str, Any] = {
        "model": row.settings["model"],
        "data": row.settings["data"],
        "layout": str(row.layout),
        "microbatches": row.microbatches,
        "settings": settings_in_words(row.settings, names),
        **row.sample.mean.columns("ours_ms", 1e3),
    }
    flags = {"ours": counted_flags(row)}
    for implementation, mode in itertools.product(("pyg", "reference", "dgl"), COMPILED):
        changes = {"implementation": implementation} | ({} if mode == "off" else {"compile": mode})
        if not pd.isna(row.settings.get("sampler")):
            # A library is its loader and its layers, which sample with the same semantics as ours.
            changes["sampler"] = implementation
        other = find_like(row, rows, changes)
        if other is not None:
            name = IMPLEMENTATIONS[implementation] + COMPILED[mode]
            column = name.lower().replace(" ", "_").replace("-", "_")
            flags[name] = counted_flags(other)
            line |= other.sample.mean.columns(f"{column}_ms", 1e3)
            line |= other.sample.over(row.sample).columns(f"over_{column}")
    if len(flags) == 1:
        return {}
    words = [f"{name}: {', '.join(found)}" for name, found in flags.items() if found]
    return line | {"flags": "; ".join(words)}
