"""Headings of how well links were predicted, which is no accuracy."""

from __future__ import annotations

import re
from collections.abc import Iterable

_METRIC = re.compile(r"(val|test)_(auc|mrr|hits@[0-9]+)")
_SPLITS = {"val": "validation", "test": "test"}


def link_columns(names: Iterable[str]) -> dict[str, str]:
    """Those of these columns that are metrics of links, each with its heading."""
    found = (_METRIC.fullmatch(name) for name in names)
    return {each[0]: f"{_SPLITS[each[1]]} {_kind(each[2])}" for each in found if each}


def _kind(metric: str) -> str:
    return metric if metric.startswith("hits") else metric.upper()


def judged_in_words(names: Iterable[str]) -> str:
    """What the metrics among these columns are, besides losses."""
    metrics = [name for name in names if not name.endswith("_loss")]
    links = link_columns(metrics)
    if not links:
        return "accuracies"
    return "ranks of links" if len(links) == len(metrics) else "accuracies, and ranks of links"
