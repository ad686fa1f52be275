"""Rows of a run and of a published study, in the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.statistics.intervals import Interval, interval_of_shares
from analysis.statistics.sample import Sample
from analysis.studies.study import Study, published_studies, read_published
from analysis.summary.configurations import Configuration
from analysis.summary.frameworks import DEPENDS_ON_IMPLEMENTATION
from analysis.summary.ideal_step import has_split_backward
from analysis.summary.settings_in_words import (
    IMPLEMENTATIONS,
    SAMPLERS,
    is_missing,
    settings_in_words,
    varying_settings,
)
from analysis.summary.summary_table import Summary
from gnnhpc.core.layout import Layout
from gnnhpc.core.schedules import bound

_MEASURES = {
    *("seconds", "std_s", "min_s", "max_s", "n", "note", "work", "groups", "way"),
    *("test_accuracy", "val_accuracy", "train_loss", "edges_lost", "epoch_ms"),
    "published_workers",
}
"""Columns of a published row that are no settings."""
_CROWDED = ("oversubscribed", "shared_gpu")
"""Flags of ranks that had no processor each."""
_LAYER_GROUPS = ("block", "readout")


@dataclass(frozen=True)
class Row:
    """One row; `columns` has its settings, words for them, and what was measured."""

    columns: dict[str, Any]
    """`run` names a row of the run, such as `cora, pp4, halo, DGL, engine native`."""
    settings: Mapping[str, Any]
    """Those of the experiment, with the phase; of layers also which, and the way."""
    configuration: Configuration | None = None
    """None for a published row."""
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """Quantities that it was measured for, besides those columns that have bounds."""

    @property
    def is_measured(self) -> bool:
        """Whether a cell of it counts."""
        return self.configuration is not None and bool(self.configuration.step_times)

    @property
    def shares_processors(self) -> bool:
        """Whether ranks took turns: more of them than processors, or torchgpipe on a CPU."""
        if self.configuration is None or self.configuration.layout.world_size == 1:
            return False
        flags = {flag for words in self.configuration.used["flags"] for flag in words.split(";")}
        takes_turns = (self.settings["engine"], self.settings["device"]) == ("torchgpipe", "cpu")
        return takes_turns or not flags.isdisjoint(_CROWDED)

    @cached_property
    def environment(self) -> dict[str, str]:
        """What it ran in, but for what the implementation decides."""
        known = self.configuration.environment.items() if self.configuration else ()
        return {name: value for name, value in known if name not in DEPENDS_ON_IMPLEMENTATION}

    @cached_property
    def means(self) -> dict[tuple[int, int, str], float]:
        """Mean seconds a step by seed, repeat and run folder."""
        assert self.configuration is not None
        sample = self.configuration.sample
        return {
            (one.seed, one.number, one.folder): float(mean)
            for one, mean in zip(sample.repeats, sample.means, strict=True)
        }

    def interval(self, name: str) -> Interval | None:
        """A quantity with its bounds; None where it was not measured."""
        if name in self.intervals:
            return self.intervals[name]
        names = (name, f"{name}_low", f"{name}_high")
        value, low, high = (self.columns.get(each) for each in names)
        if value is None or is_missing(value):
            return None
        return Interval(value, None if is_missing(low) else low, None if is_missing(high) else high)

    def of_seeds(self, metric: str) -> pd.Series[float]:
        """The last value of each seed; empty where none was recorded or features are made up."""
        assert self.configuration is not None
        used = self.configuration.used
        if metric not in used or not _has_real_features(self.settings):
            return pd.Series(dtype=float)
        return used[metric].astype(float).groupby(used["seed"]).mean().dropna()


def published_rows(study: Study) -> list[Row]:
    """The printed rows of a study."""
    return [
        Row(
            {"table": "", "way": "", "sampled": False} | record | _in_words(record, study),
            {key: value for key, value in record.items() if key not in _MEASURES},
        )
        for record in _records(study.published)
    ]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(key): value for key, value in record.items()} for record in frame.to_dict("records")
    ]


def published_points(figure: str, model: str, data: str) -> tuple[pd.DataFrame, str] | None:
    """The points of a study that are drawn in a figure, and its words for the caption."""
    for study in published_studies().values():
        for one in study.figures:
            if one.figure == figure and model in study.models and data in one.data:
                if one.file:
                    points = read_published(one.file)
                else:
                    points = pd.DataFrame([row.columns for row in published_rows(study)])
                    points["epoch_s"] = points["seconds"] / study.epochs
                names = {"model": study.models[model], "data": data}
                return points.query(one.select, local_dict=names, engine="python"), one.caption
    return None


def measured_rows(study: Study, summary: Summary) -> list[Row]:
    """The rows of a run with which a study is compared; some may not be measured."""
    table = summary.table
    chosen = table["model"].isin(list(study.models)) & table["data"].isin(study.data)
    varying = varying_settings(table[chosen]) if chosen.any() else []
    names = [name for name in varying if name not in study.label_settings]
    lines = zip(summary.configurations, _records(table), chosen, strict=True)
    rows: list[Row] = []
    for one, line, of_study in lines:
        if of_study:
            rows += _rows_of(one, line, study, names, summary)
    if not rows:
        return []
    frame = pd.DataFrame([row.columns for row in rows])
    return [rows[place] for place in frame.query(study.measured, engine="python").index]


def _rows_of(
    one: Configuration,
    line: Mapping[str, Any],
    study: Study,
    names: list[str],
    summary: Summary,
) -> Iterator[Row]:
    """The row of a configuration, and of a sequential one those of its groups of layers."""
    columns = {**one.settings, "phase": one.phase, "table": "none", "groups": 1}
    columns["way"] = "forward and backward" if one.phase == "train" else "forward"
    columns |= _in_words(columns, study)
    intervals = _intervals(one)
    columns |= _measures(one, line, study, intervals)
    columns["settings"] = settings_in_words(one.settings, names)
    words = (str(columns[name]) for name in (*study.label, "settings") if columns[name])
    columns["run"] = ", ".join(words)
    settings = {**one.settings, "phase": one.phase}
    yield Row(columns, settings, one, intervals)
    if one.layout.world_size == one.microbatches == 1 and one.settings["model"] == "vig":
        for kind in _LAYER_GROUPS:
            for way, groups, sample, statistics in _layer_groups(one, kind, summary):
                which = {"layout": kind, "way": way}
                many = f", {groups} of them" if groups > 1 else ""
                more = {"groups": groups, "run": columns["run"] + many}
                seconds = {"seconds": sample.mean}
                yield Row(columns | statistics | which | more, settings | which, one, seconds)


def _in_words(settings: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """What follows from the settings, and words for them."""
    name = str(settings["layout"])
    layout = Layout() if name in _LAYER_GROUPS else Layout.parse(name)
    implementation = str(settings.get("implementation", ""))
    framework = IMPLEMENTATIONS.get(implementation, implementation)
    microbatches = int(settings["microbatches"])
    chunks = microbatches * layout.replicas
    found = {
        "model_name": study.models.get(str(settings["model"]), ""),
        "stages": layout.stages,
        "replicas": layout.replicas,
        "ranks": layout.world_size,
        "balanced": bound(layout.replicas, layout.stages, microbatches),
        "chunk_bound": bound(1, layout.stages, microbatches) / bound(1, layout.stages, 1),
        "chunk_count": chunks,
        "chunk_words": f"{chunks} chunk{'s' if chunks > 1 else ''}",
        "mode": settings.get("chunks") if chunks > 1 else "whole graph",
        "rebuilt": "rebuilt in each layer" if settings.get("rebuild") == "layer" else "",
        "framework": framework,
        "library": framework,
        "compute": str(settings.get("device", "")).upper(),
        "schedule_words": "" if settings.get("schedule") == "gpipe" else settings.get("schedule"),
        "split_backward": has_split_backward(str(settings.get("schedule")), layout.stages),
        "sampled": not is_missing(settings.get("sampler")),
        "of_nodes": is_missing(settings.get("task_name")),
    }
    if not is_missing(settings.get("batch_size")):
        found["batch"] = f"batch {settings['batch_size']:g}"
    if found["sampled"]:
        sampler, semantics = SAMPLERS[str(settings["sampler"])], settings.get("semantics")
        same = sampler == framework
        found["library"] = sampler if same else f"{sampler} before layers of {framework}"
        found["semantics_words"] = semantics if found["library"] == "ours" else ""
        workers = int(settings["workers"])
        found["worker_words"] = f"{workers} worker{'' if workers == 1 else 's'}"
    words = (found["library"], found.get("semantics_words"))
    found["library_words"] = ", ".join(str(word) for word in words if word)
    return found


def _intervals(one: Configuration) -> dict[str, Interval]:
    """Seconds of a step, the share of it that waits for its mini-batch, and the share of cells that
    did not end; why they did not is not known, so it has no interval.
    """
    started = one.cells["status"][one.cells["status"] != "missing"]
    share = float((started != "done").mean()) if len(started) else 0.0
    words = f"{share:.0%} of {len(started)} cells did not end"
    unfinished = Interval(share, None, None, words) if share else Interval(0.0, 0.0, 0.0)
    if not one.step_times:
        return {"unfinished": unfinished}
    data = one.cell_phases["data_s"].to_numpy(dtype=float)
    step = np.array([times.mean() for times in one.step_times])
    waiting = interval_of_shares(data / step, one.sample.values.size)
    return {"seconds": one.sample.mean, "waiting": waiting, "unfinished": unfinished}


def _measures(
    one: Configuration, line: Mapping[str, Any], study: Study, intervals: Mapping[str, Interval]
) -> dict[str, Any]:
    """What a configuration measured, with bounds, in the units of the tables."""
    real = _has_real_features(one.settings)
    found = {
        name: value
        for name, value in line.items()
        if name not in one.settings and (real or "accuracy" not in name)
    }
    found |= {"n": len(one.sample.values), "runs": len(one.step_times)}
    if one.step_times:
        mean = one.sample.mean
        found |= mean.columns("seconds") | mean.columns("epoch_ms", 1e3)
    if one.epoch is not None:
        found |= one.epoch.columns("epochs_s", study.epochs)
        found |= intervals["waiting"].columns("waiting_percent", 100.0)
    if not is_missing(line.get("edges_kept")):
        found["edges_lost"] = 100.0 * (1.0 - float(line["edges_kept"]))
    return found


def _has_real_features(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("data_features") != "made")


def _layer_groups(
    one: Configuration, kind: str, summary: Summary
) -> Iterator[tuple[str, int, Sample, dict[str, Any]]]:
    """Way, number of groups, step times and statistics of one kind of groups of layers.

    Statistics are over groups and profiled steps; a step's time is the mean of its groups'.
    """
    times = summary.run.layer_times
    times = times[times["cell"].isin(one.cell_phases["cell"]) & (times["phase"] == one.phase)]
    times = times[times["group"].astype(str).str.startswith(kind)]
    if times.empty:
        return
    ways = {"forward": times["forward_s"]}
    if one.phase == "train":
        ways["forward and backward"] = times["forward_s"] + times["backward_s"]
    for way, seconds in ways.items():
        steps = seconds.groupby([times["cell"], times["step"]], observed=True).mean()
        sample = Sample([part.to_numpy() for _, part in steps.groupby(level=0, observed=True)])
        statistics = {
            **sample.mean.columns("mean_s"),
            **sample.mean.columns("seconds"),
            "mean_low": sample.mean.low,
            "mean_high": sample.mean.high,
            "std_s": seconds.std(),
            "min_s": seconds.min(),
            "max_s": seconds.max(),
            "n": len(seconds),
        }
        yield way, times["group"].nunique(), sample, statistics
