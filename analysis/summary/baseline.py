"""Finds the baseline of a speedup: the sequential run, unless --baseline names another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from analysis.summary.configurations import Configuration
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout

# Settings that may differ from the baseline's; all others must be equal.
_MAY_DIFFER = (
    "batch_size",
    "train_steps",
    "test_steps",
    "test_every",
    "warmup_steps",
    "batchnorm",
    "schedule",
    "engine",
    "chunks",
    "balance",
)
_LAYOUT_KEYS = ("layout", "microbatches")


@dataclass(frozen=True)
class Baseline:
    """A layout and its micro-batches."""

    layout: Layout = field(default_factory=Layout)
    microbatches: int = 1

    @classmethod
    def parse(cls, text: str) -> Baseline:
        """Read `seq` or `pp2:10`; raises InputError for another form."""
        name, _, count = text.partition(":")
        try:
            microbatches = int(count) if count else 1
            if microbatches < 1:
                raise ValueError
            return cls(Layout.parse(name), microbatches)
        except (ValueError, InputError):
            raise InputError(
                "--baseline",
                None,
                repr(text),
                "LAYOUT or LAYOUT:MICROBATCHES",
            ) from None

    def __str__(self) -> str:
        return f"{self.layout} m{self.microbatches}"


def find_baseline(
    row: Configuration, rows: Iterable[Configuration], wanted: Baseline
) -> Configuration | None:
    """The measured configuration that `row` is compared with, or None.

    Model, data, implementation, optimizer, precision and device must be equal. Of several
    candidates the one that agrees in most other settings is taken: batch size, schedule, chunks.
    """
    best, score = None, -1
    for other in rows:
        if (
            other.phase != row.phase
            or other.layout != wanted.layout
            or other.microbatches != wanted.microbatches
            or not other.step_times
        ):
            continue
        differing = [key for key in row.settings if not _same_setting(row, other, key)]
        if any(key not in _MAY_DIFFER for key in differing if key not in _LAYOUT_KEYS):
            continue
        agreeing = len(_MAY_DIFFER) - len([key for key in differing if key in _MAY_DIFFER])
        if agreeing > score:
            best, score = other, agreeing
    return best


def _same_setting(row: Configuration, other: Configuration, key: str) -> bool:
    value, other_value = row.settings[key], other.settings[key]
    return bool(value == other_value) or bool(pd.isna(value) and pd.isna(other_value))
