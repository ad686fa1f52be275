"""GAT's configurations of a run, and which of them differ in one thing alone."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.load.run_data import RunData as Run
from analysis.statistics.intervals import Interval, ratio_of_pairs, t_bounds
from analysis.statistics.pairs import FEWEST_PAIRS
from analysis.summary.configurations import Configuration, make_configurations
from analysis.summary.frameworks import find_like, same_value
from analysis.summary.learnt_columns import learnt_columns
from analysis.summary.settings_in_words import IMPLEMENTATIONS as FRAMEWORKS
from analysis.summary.settings_in_words import settings_in_words, varying_settings

_TOLD = ("implementation", "chunks", "rebuild", "device", "data_features")
_CROWDED = ("oversubscribed", "shared_gpu")
"""Flags of ranks that had no processor each."""
_WHO_COMPUTES = (
    *("layout", "microbatches", "engine", "schedule", "virtual_stages", "balance"),
    *("chunks", "rebuild", "activation_checkpointing", "bucket_mib"),
)
"""What one chunk of a graph may differ in and learn the same."""


@dataclass(frozen=True)
class GatRow:
    """A configuration of GAT in training, with what the study's tables say of one."""

    row: Configuration
    others: str = ""
    """The settings in words that have no column or word of their own and tell rows apart."""

    @property
    def label(self) -> str:
        """What names a row, such as `cora, pp4, halo, DGL, engine native`."""
        rebuilt = ["rebuilt in each layer"] if self.rebuilt else []
        words = [self.data, self.where, self.mode, *rebuilt, self.framework]
        return ", ".join([*words, *filter(None, [self.others])])

    @property
    def settings(self) -> dict[str, Any]:
        return self.row.settings

    @property
    def data(self) -> str:
        return str(self.settings["data"])

    @property
    def where(self) -> str:
        """Its layout, such as pp4."""
        return str(self.settings["layout"])

    @property
    def framework(self) -> str:
        """PyG, DGL or ours."""
        name = str(self.settings["implementation"])
        return FRAMEWORKS.get(name, name)

    @property
    def compute(self) -> str:
        """CPU or GPU."""
        return str(self.settings["device"]).upper()

    @property
    def chunks(self) -> int:
        """Of all replicas."""
        return self.row.microbatches * self.row.layout.replicas

    @property
    def mode(self) -> str:
        """How the graph is cut; `whole graph` for one chunk."""
        return str(self.settings["chunks"]) if self.chunks > 1 else "whole graph"

    @property
    def rebuilt(self) -> bool:
        """Whether edges were cut out of the graph in each layer."""
        return bool(self.settings["rebuild"] == "layer")

    @property
    def shares_processors(self) -> bool:
        """Whether stages had to take turns: more ranks than processors or GPUs, or torchgpipe on a
        CPU.
        """
        flags = {flag for words in self.row.used["flags"] for flag in str(words).split(";")}
        takes_turns = self.settings["engine"] == "torchgpipe" and self.compute == "CPU"
        several = self.row.layout.world_size > 1
        return several and (takes_turns or not flags.isdisjoint(_CROWDED))

    @property
    def learns_from_real_features(self) -> bool:
        return bool(self.settings.get("data_features") != "made")

    @property
    def runs(self) -> int:
        return len(self.row.step_times)

    @property
    def seconds(self) -> Interval:
        """An epoch's."""
        return self.row.sample.mean

    @cached_property
    def learnt(self) -> dict[str, float | None]:
        """Last losses and accuracies with bounds; no accuracies where features are made up."""
        found = learnt_columns(self.row.used)
        real = self.learns_from_real_features
        return {name: value for name, value in found.items() if real or "accuracy" not in name}

    @property
    def edges_kept(self) -> float:
        """Share of the graph's edges; nan where it was not recorded."""
        return float(self.row.used["edges_kept"].astype(float).mean())

    def accuracy(self, split: str) -> pd.Series[float]:
        """Last accuracy of each seed; empty where none was recorded or features are made up."""
        name = f"{split}_accuracy"
        used = self.row.used
        if name not in used or not self.learns_from_real_features:
            return pd.Series(dtype=float)
        return used[name].astype(float).groupby(used["seed"]).mean().dropna()

    def accuracy_less(self, other: GatRow, split: str) -> Interval | None:
        """This accuracy less the other's, from the seeds that both have; None without any."""
        both = pd.concat([self.accuracy(split), other.accuracy(split)], axis=1).dropna()
        if both.empty:
            return None
        less = (both.iloc[:, 0] - both.iloc[:, 1]).to_numpy()
        basis = f"{less.size} seed{'s' if less.size > 1 else ''}"
        if less.size < FEWEST_PAIRS:
            return Interval(float(less.mean()), None, None, f"of {basis} only")
        low, high = t_bounds(less)
        return Interval(float(less.mean()), float(low), float(high), basis)

    def speedup_over(self, other: GatRow) -> Interval:
        """The other's seconds an epoch over these."""
        return other.row.sample.mean_over(self.row.sample)

    @property
    def seconds_of_runs(self) -> dict[tuple[int, int, str], float]:
        """Mean seconds an epoch by seed, repeat and run folder."""
        sample = self.row.sample
        return {
            (one.seed, one.number, one.folder): float(mean)
            for one, mean in zip(sample.repeats, sample.means, strict=True)
        }


class GatRows:
    """All configurations of GAT that measured a training step; `summary` tells them apart.

    Without those on sampled mini-batches, whose steps are no epochs, and those of several parts a
    stage or of gradients of weights apart, which the study does not have.
    """

    def __init__(self, run: Run, summary: pd.DataFrame) -> None:
        self._run = run
        mine = summary[summary["model"] == "gat"]
        self._names = [
            name for name in (varying_settings(mine) if len(mine) else ()) if name not in _TOLD
        ]

    @cached_property
    def rows(self) -> list[GatRow]:
        if "gat" not in set(self._run.cells["model"] if len(self._run.cells) else ()):
            return []
        return [
            GatRow(row, settings_in_words(row.settings, self._names))
            for row in make_configurations(self._run)
            if (row.settings["model"], row.phase) == ("gat", "train")
            and row.step_times
            and pd.isna(row.settings.get("sampler"))
            and row.virtual_stages == 1
            and not row.split_backward
        ]

    @property
    def on_one_device(self) -> list[GatRow]:
        """Those of the whole graph in one process, whose edges are cut out once."""
        return [
            row
            for row in self.rows
            if row.chunks == row.row.layout.world_size == 1 and not row.rebuilt
        ]

    def __iter__(self) -> Iterator[GatRow]:
        return iter(self.rows)

    def like(
        self, row: GatRow, changes: Mapping[str, Any], free: Collection[str] = ()
    ) -> GatRow | None:
        """The row that has these settings and is like `row` in all others but the free ones."""
        found = find_like(row.row, [other.row for other in self.rows], changes, free)
        return next((other for other in self.rows if other.row is found), None)

    def whole_graph_of(self, row: GatRow) -> GatRow | None:
        """The row that learns the same but from the whole graph, of the same layout if there is."""
        found = [
            other
            for other in self.rows
            if other.chunks == 1
            and all(
                same_value(other.settings[k], v)
                for k, v in row.settings.items()
                if k not in _WHO_COMPUTES
            )
        ]
        here = [other for other in found if other.settings["layout"] == row.settings["layout"]]
        return next(iter(here + found), None)


def ratio_of_speedups(one: tuple[GatRow, GatRow], other: tuple[GatRow, GatRow]) -> Interval | None:
    """The speedup of one's first row over its second, over that of the other pair.

    From the seeds and repeats that all four have; None of fewer than three.
    """
    times = [row.seconds_of_runs for row in (*one, *other)]
    shared = [key for key in times[0] if all(key in each for each in times)]
    if len(shared) < FEWEST_PAIRS:
        return None
    fast, slow, other_fast, other_slow = (np.array([each[key] for key in shared]) for each in times)
    return ratio_of_pairs(slow / fast, other_slow / other_fast)
