"""Rows of a run and of a published study, in the same columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.load.comparable import Environment
from analysis.statistics.intervals import Interval, interval_of_shares
from analysis.statistics.sample import Sample
from analysis.studies.study import Study, published_studies, read_published
from analysis.summary.configurations import Configuration
from analysis.summary.settings_in_words import IMPLEMENTATIONS, is_missing, with_study
from analysis.summary.summary_table import Summary
from gnnhpc.core.layout import Layout
from gnnhpc.core.schedules import bound

_LAYER_GROUPS = ("block", "readout")
_CROWDED = ("oversubscribed", "shared_gpu")
"""Flags of ranks that had no processor each."""


@dataclass(frozen=True)
class Row:
    """One row of a run, or a published one."""

    columns: dict[str, Any]
    """Its settings, words for them, and what was measured; `run` names a row of a run."""
    settings: Mapping[str, Any]
    """Those of the experiment, with the phase; `layout` of a row of layers is which layers."""
    configuration: Configuration | None = None
    """None for a published row."""
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """Measures whose interval has a reason, or words for why there is none."""

    @property
    def runs(self) -> int:
        """How many runs were measured; 0 for a published row."""
        return len(self.configuration.step_times) if self.configuration else 0

    @property
    def environment(self) -> Environment:
        """What it was measured in; empty for a published row."""
        return self.configuration.environment if self.configuration else {}

    @property
    def shares_processors(self) -> bool:
        """Whether ranks took turns: more of them than processors, or torchgpipe on a CPU."""
        if self.configuration is None or self.configuration.layout.world_size == 1:
            return False
        flags = {flag for words in self.configuration.used["flags"] for flag in words.split(";")}
        takes_turns = (self.settings["engine"], self.settings["device"]) == ("torchgpipe", "cpu")
        return takes_turns or not flags.isdisjoint(_CROWDED)

    def interval(self, name: str) -> Interval | None:
        """A measure with its bounds; None where it was not measured."""
        if name in self.intervals:
            return self.intervals[name]
        value, low, high = (self.columns.get(f"{name}{end}") for end in ("", "_low", "_high"))
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

    def with_intervals(self, intervals: Mapping[str, Interval], **columns: Any) -> Row:
        """The row with these measures, and their bounds as columns."""
        known = {k: v for name, one in intervals.items() for k, v in one.columns(name).items()}
        together = {**self.intervals, **intervals}
        return Row(
            {**self.columns, **known, **columns}, self.settings, self.configuration, together
        )


def selected(rows: Sequence[Row], query: str) -> list[Row]:
    """The rows that a query of pandas chooses."""
    if not rows:
        return []
    frame = pd.DataFrame([row.columns for row in rows])
    return [rows[place] for place in frame.query(query, engine="python").index]


def published_rows(study: Study) -> list[Row]:
    """The printed rows of a study."""
    rows = []
    for file, names in study.published.items():
        for line in read_published(file).to_dict("records"):
            settings = {name: line[name] for name in names}
            columns = {str(name): value for name, value in line.items()}
            rows.append(Row(columns | _in_words(settings, study), settings))
    return rows


def published_points(figure: str, model: str, data: str) -> tuple[pd.DataFrame, str] | None:
    """The points of a study that are drawn in a figure, and its words for the caption."""
    for study in published_studies().values():
        for one in study.figures:
            if one.figure == figure and model in study.models and data in study.data:
                if one.file:
                    return read_published(one.file), one.caption
                query = f"model == '{model}' and data == '{data}' and ({one.select})"
                rows = selected(published_rows(study), query)
                if rows:
                    points = pd.DataFrame([row.columns for row in rows])
                    return points.assign(epoch_s=points["seconds"] / study.epochs), one.caption
    return None


def measured_rows(study: Study, summary: Summary) -> list[Row]:
    """The rows of a run with which a study is compared; some may not be measured."""
    table = summary.table
    table = table[table["model"].isin(list(study.models)) & table["data"].isin(study.data)]
    rows: list[Row] = []
    for place, line in zip(table.index, with_study(table).to_dict("records"), strict=True):
        row = _measured_row(summary.configurations[place], line, study)
        rows += [row, *_rows_of_layers(row, summary)]
    return selected(rows, study.measured)


def _measured_row(one: Configuration, line: Mapping[Any, Any], study: Study) -> Row:
    """A configuration with what its row of the summary says, and in the units of the tables."""
    settings = {**one.settings, "phase": one.phase}
    real = _has_real_features(settings)
    columns = {name: v for name, v in line.items() if real or "accuracy" not in name}
    columns |= {**settings, **_in_words(settings, study), "table": "none", "groups": 1}
    columns["run"] = ", ".join(filter(None, (line["study"], f"{one.layout} m{one.microbatches}")))
    columns["runs"] = len(one.step_times)
    if not is_missing(line.get("edges_kept")):
        columns["edges_lost"] = 100.0 * (1.0 - float(line["edges_kept"]))
    return Row(columns, settings, one).with_intervals(dict(_intervals(one, study)))


def _intervals(one: Configuration, study: Study) -> Iterator[tuple[str, Interval]]:
    """Seconds, the share of a step that waits for its mini-batch, and the share of cells that did
    not end; why they did not is not known, so it has no interval.
    """
    started = one.cells["status"][one.cells["status"] != "missing"]
    share = float((started != "done").mean()) if len(started) else 0.0
    words = f"{share:.0%} of {len(started)} cells did not end"
    yield "unfinished", Interval(share, None, None, words) if share else Interval(0.0, 0.0, 0.0)
    if one.step_times:
        yield "seconds", one.sample.mean
        yield "epoch_ms", one.sample.mean.over(1e-3)
        data = one.cell_phases["data_s"].to_numpy(dtype=float)
        step = np.array([times.mean() for times in one.step_times])
        waiting = interval_of_shares(data / step, one.sample.values.size)
        yield "waiting_percent", waiting.over(0.01)
    epoch = one.interval("epoch_s")
    if epoch is not None:
        yield "seconds_in_all", epoch.over(1.0 / study.epochs)


def _rows_of_layers(row: Row, summary: Summary) -> Iterator[Row]:
    """For each kind of groups of layers of a sequential ViG, one row of the mean group.

    Statistics are over groups and profiled steps; a step's time is the mean of its groups'.
    """
    one = row.configuration
    if one is None or one.layout.world_size * one.microbatches > 1:
        return
    times = summary.run.layer_times
    times = times[times["cell"].isin(one.cell_phases["cell"]) & (times["phase"] == one.phase)]
    for kind in _LAYER_GROUPS:
        mine = times[times["group"].astype(str).str.startswith(kind)]
        if mine.empty:
            continue
        seconds = mine["forward_s"] + mine["backward_s"].fillna(0.0)
        steps = seconds.groupby([mine["cell"], mine["step"]], observed=True).mean()
        sample = Sample([part.to_numpy() for _, part in steps.groupby(level=0, observed=True)])
        groups = mine["group"].nunique()
        settings = {**row.settings, "layout": kind}
        yield Row({**row.columns, "layout": kind}, settings, one).with_intervals(
            {"seconds": sample.mean},
            std_s=seconds.std(),
            min_s=seconds.min(),
            max_s=seconds.max(),
            n=len(seconds),
            groups=groups,
            run=f"{row.columns['run']}, mean of {groups}",
        )


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
        "rebuilt": settings.get("rebuild") == "layer",
        "framework": framework,
        "library": framework,
        "library_words": framework,
        "compute": str(settings.get("device", "")).upper(),
        "sampled": not is_missing(settings.get("sampler")),
        "of_nodes": is_missing(settings.get("task_name")),
    }
    if found["sampled"]:
        sampler = IMPLEMENTATIONS[str(settings["sampler"])]
        if sampler != framework:
            found["library"] = f"{sampler} before layers of {framework}"
        ours = found["library"] == "ours"
        found["library_words"] = f"ours, {settings['semantics']}" if ours else found["library"]
        workers = int(settings["workers"])
        found["worker_words"] = f"{workers} worker{'' if workers == 1 else 's'}"
    return found


def _has_real_features(settings: Mapping[str, Any]) -> bool:
    return bool(settings.get("data_features") != "made")
