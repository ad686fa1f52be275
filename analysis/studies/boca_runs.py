"""Configurations of a run that are trained on sampled mini-batches, as Boca's study has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.load.run_data import RunData as Run
from analysis.statistics.intervals import Interval, interval_of_shares
from analysis.studies.boca_claims import EPOCHS, MODELS
from analysis.summary.configurations import Configuration, make_configurations
from analysis.summary.frameworks import find_like
from analysis.summary.settings_in_words import IMPLEMENTATIONS as FRAMEWORKS
from analysis.summary.settings_in_words import SAMPLERS, settings_in_words, varying_settings

_TOLD = ("implementation", "sampler", "semantics", "batch_size", "workers", "train_steps")
_CROWDED = ("oversubscribed", "shared_gpu")
"""Flags of ranks that had no processor each."""


@dataclass(frozen=True)
class BocaRow:
    """A configuration in training, with what the study's table says of one."""

    row: Configuration
    others: str = ""
    """The settings in words that have no column or word of their own and tell rows apart."""

    @property
    def settings(self) -> dict[str, Any]:
        return self.row.settings

    @property
    def model(self) -> str:
        return MODELS[str(self.settings["model"])]

    @property
    def data(self) -> str:
        return str(self.settings["data"])

    @property
    def library(self) -> str:
        """PyG, DGL or ours; of a loader before another one's layers both."""
        sampler = SAMPLERS[str(self.settings["sampler"])]
        layers = FRAMEWORKS.get(str(self.settings["implementation"]), "ours")
        return sampler if sampler == layers else f"{sampler} before layers of {layers}"

    @property
    def draws(self) -> str:
        """`ours, once`: with what is done with a node that is reached twice."""
        return f"{self.library}, {self.settings['semantics']}"

    @property
    def ranks(self) -> int:
        return self.row.layout.replicas

    @property
    def workers(self) -> int:
        return int(self.settings["workers"])

    @property
    def batch_size(self) -> int:
        """Of a rank."""
        return int(self.settings["batch_size"])

    @property
    def where(self) -> str:
        """Such as `DGL, batch 512, 1 worker`, with what else tells rows apart."""
        count = f"{self.workers} worker{'' if self.workers == 1 else 's'}"
        words = [self.library, f"batch {self.batch_size}", count]
        if self.library == "ours":
            words.insert(1, str(self.settings["semantics"]))
        return ", ".join([*words, *filter(None, [self.others])])

    @property
    def label(self) -> str:
        """What names a row, such as `reddit, GraphSAGE, dp2, DGL, batch 512, 1 worker`."""
        return f"{self.data}, {self.model}, {self.row.layout}, {self.where}"

    @property
    def runs(self) -> int:
        return len(self.row.step_times)

    @property
    def shares_processors(self) -> bool:
        """Whether ranks had to take turns: more of them than processors or GPUs."""
        flags = {flag for words in self.row.used["flags"] for flag in str(words).split(";")}
        return self.ranks > 1 and not flags.isdisjoint(_CROWDED)

    @cached_property
    def seconds(self) -> Interval | None:
        """Of as many epochs as the study's, from one that was measured or extrapolated."""
        one = self.row.epoch
        if one is None:
            return None
        low, high = (None if bound is None else EPOCHS * bound for bound in (one.low, one.high))
        return Interval(EPOCHS * one.value, low, high, one.basis)

    @property
    def told_from(self) -> str:
        return self.row.epoch_from or ""

    @cached_property
    def waiting(self) -> Interval:
        """The share of a step that waits for its mini-batch."""
        data = self.row.cell_phases["data_s"].to_numpy(dtype=float)
        step = np.array([times.mean() for times in self.row.step_times])
        return interval_of_shares(data / step, self.row.sample.values.size)

    def speedup_over(self, other: BocaRow) -> Interval:
        """The other's seconds of an epoch over these, as samples a second tell it."""
        found = self.row.speedup_over(other.row)
        assert found is not None
        return found


class BocaRows:
    """All that were sampled and measured a training step, of GraphSAGE and GAT.

    As in the study each rank has a whole model, and classes of nodes are learnt: pipelines and runs
    that learn links, whose epoch is all links, are rows of other tables.
    """

    def __init__(self, run: Run, summary: pd.DataFrame) -> None:
        self.run = run
        named = summary[summary["model"].isin(list(MODELS))]
        self._names = [
            name for name in (varying_settings(named) if len(named) else ()) if name not in _TOLD
        ]

    @cached_property
    def rows(self) -> list[BocaRow]:
        if "sampler" not in self.run.settings:
            return []
        return [
            BocaRow(row, settings_in_words(row.settings, self._names))
            for row in make_configurations(self.run)
            if row.phase == "train"
            and row.settings["model"] in MODELS
            and not pd.isna(row.settings["sampler"])
            and row.layout.stages == 1
            and pd.isna(row.settings.get("task_name"))
            and row.step_times
        ]

    def __iter__(self) -> Iterator[BocaRow]:
        return iter(self.rows)

    def like(
        self, row: BocaRow, changes: Mapping[str, Any], free: Collection[str] = ()
    ) -> BocaRow | None:
        """The row that has these settings and is like `row` in all others but the free ones."""
        found = find_like(row.row, [other.row for other in self.rows], changes, free)
        return next((other for other in self.rows if other.row is found), None)
