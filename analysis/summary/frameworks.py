"""Compares implementations: ours with PyG's and DGL's, all other settings being equal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from analysis.load.comparable import same_but_for_implementation
from analysis.summary.configurations import Configuration, closest
from analysis.summary.settings_in_words import (
    COMPILED,
    IMPLEMENTATIONS,
    is_missing,
    settings_label,
    varying_settings,
)
from analysis.summary.summary_table import Summary, counted_flags

_LIBRARY = {"implementation", "sampler", "compile"}
"""The settings in which our form of a configuration and a library's differ."""


def frameworks_frame(summary: Summary) -> pd.DataFrame:
    """A row a configuration that was trained in our form and in a library's; empty without any.

    Milliseconds a step of each, and how many times as fast ours is, with intervals, and the flags
    of the cells of each.
    """
    rows = summary.configurations
    names = [name for name in varying_settings(summary.table) if name not in _LIBRARY]
    lines = []
    for row in rows:
        sampler = row.settings.get("sampler")
        ours = row.settings["implementation"] == "fused" and sampler not in ("pyg", "dgl")
        trained = row.phase == "train" and row.step_times
        libraries = _libraries_like(row, rows) if ours and trained else {}
        if libraries:
            known = {name: row.settings[name] for name in names}
            known = {name: value for name, value in known.items() if not is_missing(value)}
            lines.append(_line(row, libraries, settings_label(known)))
    return pd.DataFrame(lines)


def _libraries_like(row: Configuration, rows: Iterable[Configuration]) -> dict[str, Configuration]:
    """Name -> the measured row that equals ours in all but who computes, the libraries in order.

    It has the same environment but for what the implementation decides. A library is its loader and
    its layers, which sample with the same semantics as ours.
    """
    found: dict[str, Configuration] = {}
    for other in closest(rows, row.settings, _LIBRARY):
        implementation, sampler = other.settings["implementation"], other.settings.get("sampler")
        like = (
            other.phase == row.phase
            and other.step_times
            and implementation in ("pyg", "reference", "dgl")
            and (is_missing(sampler) or sampler == implementation)
            and same_but_for_implementation(row.environment, other.environment)
        )
        if like:
            mode = str(other.settings.get("compile", "off"))
            found.setdefault(IMPLEMENTATIONS[implementation] + COMPILED[mode], other)
    return dict(sorted(found.items(), key=lambda one: (one[0].startswith("DGL"), one[0])))


def _line(row: Configuration, libraries: dict[str, Configuration], settings: str) -> dict[str, Any]:
    line: dict[str, Any] = {key: row.settings[key] for key in ("model", "data", "layout")}
    line |= {"microbatches": row.microbatches, "settings": settings}
    line |= row.sample.mean.columns("ours_ms", 1e3)
    for name, other in libraries.items():
        column = name.lower().replace(" ", "_").replace("-", "_")
        line |= other.sample.mean.columns(f"{column}_ms", 1e3)
        line |= other.sample.over(row.sample).columns(f"over_{column}")
    flags = {name: counted_flags(one) for name, one in ({"ours": row} | libraries).items()}
    words = [f"{name}: {', '.join(found)}" for name, found in flags.items() if found]
    return line | {"flags": "; ".join(words)}
