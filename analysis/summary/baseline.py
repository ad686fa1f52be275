"""Finds the baseline of a speedup: the sequential run, unless --baseline names another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from analysis.across.likeness import LAYOUT_KEYS, MAY_DIFFER, in_words
from analysis.summary.configurations import Configuration
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout


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

    def check_is_in(self, cells: pd.DataFrame) -> None:
        """Raises InputError where no cell has this layout and these micro-batches.

        But for the default: a run need not have it.
        """
        columns = cells[["replicas", "stages", "microbatches"]].drop_duplicates()
        there = sorted((Layout(dp, pp), m) for dp, pp, m in columns.itertuples(index=False))
        if self != Baseline() and (self.layout, self.microbatches) not in there:
            allowed = ", ".join(Baseline(layout, m).option for layout, m in there)
            raise InputError("--baseline", None, f"{self.option}, which no cell has", allowed)

    @classmethod
    def named(cls, name: str) -> Baseline:
        """The one with this name, as str() gives it."""
        layout, _, count = name.rpartition(" m")
        return cls(Layout.parse(layout), int(count))

    @property
    def option(self) -> str:
        """As `parse` reads it."""
        return f"{self.layout}:{self.microbatches}"

    def __str__(self) -> str:
        return f"{self.layout} m{self.microbatches}"


def find_baseline(
    row: Configuration, rows: Iterable[Configuration], wanted: Baseline
) -> tuple[Configuration | None, str]:
    """The measured configuration that `row` is compared with; or None, and what makes it unlike.

    Model, data, implementation, optimizer, precision and device must be equal, and so must what
    both depend on besides their settings, and the mini-batch. Of several candidates the one that
    agrees in most other settings is taken: batch size, schedule, chunks.
    """
    best: tuple[int, Configuration] | None = None
    nearest: tuple[int, str] | None = None
    for other in rows:
        if (
            other.phase != row.phase
            or other.layout != wanted.layout
            or other.microbatches != wanted.microbatches
            or not other.step_times
        ):
            continue
        differing = [key for key in row.settings if not _same_setting(row, other, key)]
        if any(key not in (*MAY_DIFFER, *LAYOUT_KEYS) for key in differing):
            continue
        agreeing = len(MAY_DIFFER) - len([key for key in differing if key in MAY_DIFFER])
        unlike = _unlike_in_words(row, other)
        if unlike and (nearest is None or agreeing > nearest[0]):
            nearest = agreeing, unlike
        if not unlike and (best is None or agreeing > best[0]):
            best = agreeing, other
    if best is not None:
        return best[1], ""
    return None, nearest[1] if nearest is not None and row.step_times else ""


def same_batch_size(row: Configuration, other: Configuration) -> bool:
    """Whether each replica is given as many samples a step; a graph is always given whole."""
    return _same_setting(row, other, "batch_size")


def _unlike_in_words(row: Configuration, other: Configuration) -> str:
    """Empty for two that may be compared.

    Replicas may each have a mini-batch of the baseline's size, or share one of it.
    """
    words = in_words(row.facts, other.facts)
    if not same_batch_size(row, other) and row.together != other.together:
        sizes = f"batch size {row.settings['batch_size']:g} a replica and {row.together:g} together"
        batches = f"{sizes} beside {other.settings['batch_size']:g} and {other.together:g}"
        return f"{words}; {batches}" if words else batches
    return words


def _same_setting(row: Configuration, other: Configuration, key: str) -> bool:
    value, other_value = row.settings[key], other.settings[key]
    return bool(value == other_value) or bool(pd.isna(value) and pd.isna(other_value))
