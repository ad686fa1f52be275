"""Which settings tell rows of the summary apart, besides layout and micro-batches; in words."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.summary.summary_table import VARIANT_COLUMNS


def varying_settings(summary: pd.DataFrame) -> list[str]:
    """The settings in which rows of one model and data differ.

    Of sampled runs without a number of steps that follows from the layout, as one of equal epochs
    does.
    """
    names = [str(name) for name in summary.columns]
    # Settings that a sweep varies stand between those of every run and the counts of cells.
    others = names[names.index(VARIANT_COLUMNS[-1]) + 1 : names.index("cells")]
    by_study = summary.groupby(["model", "data"])
    found = [
        key
        for key in (*VARIANT_COLUMNS, *others)
        if (by_study[key].nunique(dropna=False) > 1).any()
    ]
    if "sampler" in summary and "train_steps" in found:
        by_layout = summary.groupby(["model", "data", "layout", "microbatches"])
        if (by_layout["train_steps"].nunique(dropna=False) == 1).all():
            found.remove("train_steps")
    return found


def settings_in_words(row: Any, names: Sequence[str]) -> str:
    """Those of these settings that a row has, such as `model blocks 4, dtype float64`."""
    known = {name: row[name] for name in names if not pd.isna(row[name]) and row[name] != ""}
    return ", ".join(
        f"{name.replace('_', ' ')} {_short(value)}" for name, value in with_parts_in_words(known)
    )


def with_parts_in_words(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings, parts of a stage with their schedule: `interleaved, 2 parts`."""
    parts = settings.get("virtual_stages", 1)
    for name, value in settings.items():
        if name == "schedule" and parts > 1:
            yield name, f"{value}, {parts} parts"
        elif name != "virtual_stages" or "schedule" not in settings:
            yield name, value


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, numbers.Real) else str(value)
