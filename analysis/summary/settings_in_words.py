"""Settings that distinguish rows of the summary, besides layout and micro-batches, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.summary.summary_csv_columns import VARIANT_COLUMNS
from gnnhpc.models.model_registry import model_class

IMPLEMENTATIONS = {"ours": "ours", "fused": "ours", "pyg": "PyG", "reference": "PyG", "dgl": "DGL"}
"""Names of implementations and samplers; the PyG form of ViG is its reference."""
COMPILED = {"off": "", "default": " compiled", "reduce-overhead": " compiled reduce-overhead"}
"""What follows a library's name, by the setting `compile`."""
ROW_KEYS = {"study": "study", "layout": "layout", "microbatches": "micro-batches"}
"""Columns of `with_study` that name a row, with their headings."""
_NAMED = (
    *("batchnorm", "rebuild", "activation_checkpointing", "balance", "data_storage"),
    *("cuda_graph", "compile"),
)
"""Settings whose values need the setting's name."""


def varying_settings(summary: pd.DataFrame) -> list[str]:
    """The settings in which rows of one model and data differ.

    The mode of chunks counts for rows of several chunks alone. Sampled runs of equal epochs have a
    number of steps that follows from the layout, which is left out.
    """
    names = [str(name) for name in summary.columns]
    # Settings that a sweep varies are between those of every run and the counts of cells.
    others = names[names.index(VARIANT_COLUMNS[-1]) + 1 : names.index("cells")]
    in_chunks = summary["microbatches"] * summary["replicas"] > 1
    found = []
    for key in (*VARIANT_COLUMNS, *others):
        rows = summary[in_chunks] if key == "chunks" else summary
        if (rows.groupby(["model", "data"])[key].nunique(dropna=False) > 1).any():
            found.append(key)
    if "sampler" in summary and "train_steps" in found:
        by_layout = summary.groupby(["model", "data", "layout", "microbatches"])
        if (by_layout["train_steps"].nunique(dropna=False) == 1).all():
            found.remove("train_steps")
    return found


def settings_label(settings: Mapping[str, Any]) -> str:
    """Settings as a short title; numbers, and words like `once`, have the name of the setting.

    Implementations and samplers are named as ours, PyG or DGL, a sampler only where it is not the
    implementation's. Virtual stages follow their schedule: `interleaved, 2 virtual stages`.
    """
    words = []
    implementation, sampler = (
        IMPLEMENTATIONS.get(str(settings.get(key))) for key in ("implementation", "sampler")
    )
    for key, value in settings.items():
        if key == "implementation" and implementation:
            words.append(implementation)
        elif key == "sampler" and sampler:
            words += [f"sampled by {sampler}"] if sampler != implementation else []
        elif key == "virtual_stages" and "schedule" in settings:
            words += [f"{value:g} virtual stages"] if value > 1 else []
        else:
            words.append(_with_label(key, value))
    return ", ".join(filter(None, words))


def _with_label(key: str, value: object) -> str:
    name = key.replace("_", " ")
    if is_missing(value):
        return f"no {name}"
    if isinstance(value, str) and key not in _NAMED:
        return value
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def is_missing(value: object) -> bool:
    """Whether a cell does not have a setting: its value is None, and nan in a frame."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def study_title(model: str, data: str) -> str:
    """The title of a study, such as `ViG, cifar10`."""
    known = model_class(model)
    return f"{(known.title if known else '') or model}, {data}"


def with_study(summary: pd.DataFrame) -> pd.DataFrame:
    """`summary` with a column `study`: model and data, where there are several, and the settings in
    which rows of that model and data differ.
    """
    named = [key for key in ("model", "data") if summary[key].nunique() > 1]
    labels = pd.Series("", summary.index, dtype=object)
    for _, rows in summary.groupby(["model", "data"], sort=False):
        keys = [*named, *varying_settings(rows)]
        for place, values in zip(rows.index, rows[keys].to_numpy(object), strict=True):
            settings = dict(zip(keys, values, strict=True))
            known = {key: value for key, value in settings.items() if not is_missing(value)}
            labels[place] = settings_label(known)
    return summary.assign(study=labels)
