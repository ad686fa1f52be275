"""Studies: the cells of one model on one data set, which figures are drawn of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from analysis.summary.baseline_and_speedup import Baseline
from analysis.summary.settings_in_words import IMPLEMENTATIONS as FRAMEWORKS
from analysis.summary.settings_in_words import SAMPLERS, _with_schedules
from analysis.summary.summary_table import VARIANT_COLUMNS
from gnnhpc.models.registry import model_class

if TYPE_CHECKING:
    import pandas as pd

    from analysis.load.run_data import RunData as Run

_NAMED = ("batchnorm", "rebuild", "activation_checkpointing", "balance", "data_storage")
"""Settings whose values say nothing without their names."""
_SCHEDULING = ("schedule", "virtual_stages")
_AXES = ("model", "data", "layout", "microbatches")


@dataclass(frozen=True)
class Study:
    """The valid cells of one model on one data set."""

    model: str
    data: str
    graphs: bool
    """Whether its mini-batch is a whole graph in chunks."""
    variants: tuple[str, ...]
    """Settings in which cells of one layout and micro-batches differ, and schedules of pipelines;
    each value has a panel."""
    cells: pd.DataFrame
    steps: pd.DataFrame
    """Steps of `cells`, warm-up included, with layout, microbatches and variants as columns."""
    summary: pd.DataFrame
    ranks: pd.DataFrame

    @property
    def baseline(self) -> Baseline | None:
        """What speedups of the summary are over; None where nothing has a baseline."""
        told = self.summary["baseline"].dropna()
        return Baseline.named(str(told.iloc[0])) if len(told) else None

    @property
    def baseline_name(self) -> str:
        """Such as `seq`, or `pp2 m5`."""
        return "seq" if self.baseline in (None, Baseline()) else str(self.baseline)

    @property
    def slug(self) -> str:
        return f"{self.model}-{self.data}"

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
            yield figure_label(dict(zip(keys, values, strict=True))), part


def study_title(model: str, data: str) -> str:
    """Such as `ViG, cifar10`."""
    known = model_class(model)
    return f"{(known.title if known else '') or model}, {data}"


def figure_label(settings: Mapping[str, object]) -> str:
    """`settings_label`, with implementations by whose they are: ours, PyG, DGL.

    A sampler is named where it is another's than the layers are.
    """
    whose = str(settings.get("implementation"))
    named = {"implementation": FRAMEWORKS[whose]} if whose in FRAMEWORKS else {}
    sampler = SAMPLERS.get(str(settings.get("sampler")))
    if sampler is not None:
        same = sampler == named.get("implementation")
        settings = {key: value for key, value in settings.items() if key != "sampler"}
        named |= {} if same else {"sampler": f"drawn by {sampler}"}
    return settings_label({**settings, **named})


def settings_label(settings: Mapping[str, object]) -> str:
    """Settings as a short title; numbers, and words like `once`, with the name of the setting."""
    return ", ".join(_in_words(key, value) for key, value in _with_schedules(settings))


def is_missing(value: object) -> bool:
    """Whether a cell does not have a setting: its value is None, and in a frame nan."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def _in_words(key: str, value: object) -> str:
    name = key.replace("_", " ")
    if key == "bucket_mib":
        return "no buckets" if is_missing(value) else f"buckets of {value:g} MiB"
    if is_missing(value):
        return f"no {name}"
    whole = isinstance(value, float) and value.is_integer()
    text = str(int(value)) if isinstance(value, float) and whole else str(value)
    bare = isinstance(value, str) and key not in _NAMED
    return text if bare else f"{name} {text}"


def find_studies(run: Run, summary: pd.DataFrame) -> list[Study]:
    """The studies of a run that have a valid cell."""
    valid = run.cells[run.cells["counts"].astype(bool)]
    found = []
    for (model, data), cells in valid.groupby(["model", "data"], sort=True, observed=True):
        graphs = bool(cells["batch_size"].isna().all())
        variants = tuple(key for key in _candidates(run, summary) if _varies(cells, key))
        settings = cells[["cell", "layout", "stages", "replicas", "microbatches", *variants]]
        mine = summary[(summary["model"] == model) & (summary["data"] == data)]
        found.append(
            Study(
                str(model),
                str(data),
                graphs,
                variants,
                cells,
                run.steps[run.steps["cell"].isin(cells["cell"])].merge(settings, on="cell"),
                mine[mine["n"] > 0],
                run.ranks[run.ranks["cell"].isin(cells["cell"])],
            )
        )
    return found


def _candidates(run: Run, summary: pd.DataFrame) -> list[str]:
    """Settings that are columns of the summary, those that are always shown first."""
    others = [key for key in run.settings if key not in VARIANT_COLUMNS and key not in _AXES]
    return [key for key in (*VARIANT_COLUMNS, *others) if key in summary.columns]


def _varies(cells: pd.DataFrame, key: str) -> bool:
    """Whether cells of one layout and micro-batches differ in it; schedules of any pipelines, as
    not every number of micro-batches can be interleaved.
    """
    if key in _SCHEDULING:
        return bool(cells.loc[cells["stages"] > 1, key].nunique() > 1)
    return bool((cells.groupby(["layout", "microbatches"])[key].nunique(dropna=False) > 1).any())
