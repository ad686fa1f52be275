"""Whose code computes the layers: ours beside PyG's and DGL's, all other settings being equal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.across.likeness import differences
from analysis.loading.run import Run
from analysis.stats.intervals import Interval
from analysis.summary.configurations import Configuration, make_configurations
from analysis.summary.row_flags import counted_flags
from analysis.summary.varying_settings import settings_in_words, varying_settings

FRAMEWORKS = {"fused": "ours", "pyg": "PyG", "dgl": "DGL"}
"""By implementation, the names that tables and figures have."""
SAMPLERS = {"ours": "ours", "pyg": "PyG", "dgl": "DGL"}
"""The same by sampler."""
_TOLD = ("implementation", "sampler")


def find_like(
    row: Configuration,
    rows: Iterable[Configuration],
    changes: Mapping[str, Any],
    free: Collection[str] = (),
) -> Configuration | None:
    """The row that has these settings, and is like `row` in all others but the free ones.

    And in phase, and in everything that seconds depend on besides, except whose code computed.
    None where there is none, or it measured nothing.
    """
    wanted = {**row.settings, **changes}
    return next(
        (
            other
            for other in rows
            if other is not row
            and other.phase == row.phase
            and other.step_times
            and all(same_value(other.settings[k], v) for k, v in wanted.items() if k not in free)
            and not differences(row.facts, other.facts).keys() - {"implementation"}
        ),
        None,
    )


def same_value(one: object, other: object) -> bool:
    """Equal, or both missing."""
    return bool(one == other) or bool(pd.isna(one) and pd.isna(other))  # type: ignore[call-overload]


def frameworks_frame(run: Run, summary: pd.DataFrame) -> pd.DataFrame:
    """A row a configuration that was trained in our form and in a library's; empty without any.

    Milliseconds a step of each, and how many times as fast ours is, with intervals, and the flags
    of the cells of each.
    """
    if run.cells.empty or run.cells["implementation"].nunique() < 2:
        return pd.DataFrame()
    rows = make_configurations(run)
    names = [name for name in varying_settings(summary) if name not in _TOLD]
    found = [_beside_libraries(row, rows, names) for row in rows if _is_ours(row)]
    return pd.DataFrame([line for line in found if line])


def _is_ours(row: Configuration) -> bool:
    """Computed by our layers, and drawn by our sampler where it is sampled."""
    sampler = row.settings.get("sampler")
    if row.phase != "train" or not (pd.isna(sampler) or sampler == "ours"):
        return False
    return row.settings["implementation"] == "fused" and bool(row.step_times)


def _beside_libraries(
    row: Configuration, rows: Sequence[Configuration], names: Sequence[str]
) -> dict[str, Any]:
    """Empty where no library computed the same."""
    line: dict[str, Any] = {
        "model": row.settings["model"],
        "data": row.settings["data"],
        "layout": str(row.layout),
        "microbatches": row.microbatches,
        "settings": settings_in_words(row.settings, names),
        **_bounded("ours_ms", row.sample.mean, 1e3),
    }
    flags = {"ours": counted_flags(row)}
    for implementation in ("pyg", "dgl"):
        changes = {"implementation": implementation}
        if not pd.isna(row.settings.get("sampler")):
            # A library is its loader and its layers, drawn as ours draws: of like semantics.
            changes["sampler"] = implementation
        other = find_like(row, rows, changes)
        if other is not None:
            name = FRAMEWORKS[implementation]
            flags[name] = counted_flags(other)
            line |= _bounded(f"{name.lower()}_ms", other.sample.mean, 1e3)
            line |= _bounded(f"over_{name.lower()}", other.sample.mean_over(row.sample))
    if len(flags) == 1:
        return {}
    told = {name: ", ".join(found) for name, found in flags.items() if found}
    return line | {"flags": "; ".join(f"{name}: {found}" for name, found in told.items())}


def _bounded(name: str, of: Interval, factor: float = 1.0) -> dict[str, float | None]:
    values = {name: of.value, f"{name}_low": of.low, f"{name}_high": of.high}
    return {key: None if value is None else factor * value for key, value in values.items()}
