"""The cells of one model on one data set, which a figure is drawn of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.summary.baseline_and_speedup import Baseline
from analysis.summary.settings_in_words import settings_label, study_title
from analysis.summary.summary_csv_columns import KEY_COLUMNS, VARIANT_COLUMNS
from analysis.summary.summary_table import Summary

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class ModelOnData:
    """The cells that count of one model on one data set, with their steps and summary."""

    model: str
    data: str
    variants: tuple[str, ...]
    """Settings in which cells of one layout and micro-batches differ, and schedules of pipelines;
    each value has a panel."""
    cells: pd.DataFrame
    steps: pd.DataFrame
    """Steps of `cells`, warm-up included, with layout, microbatches and variants as columns."""
    training: pd.DataFrame
    """The rows of the summary that are of training."""
    ranks: pd.DataFrame
    baseline: Baseline
    """What speedups of the summary are over."""

    @property
    def graphs(self) -> bool:
        """Whether its mini-batch is a whole graph in chunks."""
        return bool(self.cells["batch_size"].isna().all())

    @property
    def several_frameworks(self) -> bool:
        return self.graphs and self.cells["implementation"].nunique() > 1

    @property
    def sampled(self) -> bool:
        return "sampler" in self.cells and bool(self.cells["sampler"].notna().any())

    @property
    def title(self) -> str:
        return study_title(self.model, self.data)

    def panels(
        self, frame: pd.DataFrame, but: tuple[str, ...] = ()
    ) -> Iterator[tuple[str, pd.DataFrame]]:
        """(title, part) of `frame` for each combination of the variants, except those in `but`."""
        keys = [key for key in self.variants if key not in but]
        if not keys:
            yield "", frame
            return
        for values, part in frame.groupby(keys, sort=True, observed=True, dropna=False):
            yield settings_label(dict(zip(keys, values, strict=True))), part


def find_models_on_data(measured: Summary) -> list[ModelOnData]:
    """Every model and data set of a run that have a cell which counts."""
    run, summary = measured.run, measured.table
    train = summary[(summary["phase"] == "train") & (summary["n"] > 0)]
    counted = run.cells[run.cells["counts"].astype(bool)]
    keys = dict.fromkeys((*VARIANT_COLUMNS, *run.settings))
    candidates = [key for key in keys if key in summary and key not in KEY_COLUMNS]
    found = []
    for (model, data), cells in counted.groupby(["model", "data"], sort=True, observed=True):
        variants = tuple(key for key in candidates if _varies(cells, key))
        settings = cells[["cell", "layout", "stages", "replicas", "microbatches", *variants]]
        found.append(
            ModelOnData(
                model=str(model),
                data=str(data),
                variants=variants,
                cells=cells,
                steps=run.steps[run.steps["cell"].isin(cells["cell"])].merge(settings, on="cell"),
                training=train[(train["model"] == model) & (train["data"] == data)],
                ranks=run.ranks[run.ranks["cell"].isin(cells["cell"])],
                baseline=measured.baseline,
            )
        )
    return found


def _varies(cells: pd.DataFrame, key: str) -> bool:
    """Whether cells of one layout and micro-batches differ in it; schedules of any pipelines, as
    not every number of micro-batches can be interleaved.
    """
    if key in ("schedule", "virtual_stages"):
        return bool(cells.loc[cells["stages"] > 1, key].nunique() > 1)
    return bool((cells.groupby(["layout", "microbatches"])[key].nunique(dropna=False) > 1).any())
