"""Loads a run folder as data frames: cells, steps, ranks, groups, spans."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.loading.attempts import Attempt, choose_attempt, read_attempts, resume_chain
from analysis.loading.cell_rows import attempt_row, cell_row, flat_settings
from analysis.loading.rank_files import RankFile, RankFrames, read_rank_files
from analysis.loading.record_frames import STEP_COLUMNS
from analysis.stats.noise import add_noise_columns, mark_steps
from gnnhpc.core.errors import InputError
from gnnhpc.records.paths import RunPaths
from gnnhpc.spec.manifest import Cell, read_manifest

_RANK_COLUMNS = {"cell", "rank", "stage", "replica"}


@dataclass(frozen=True)
class Run:
    """A run folder's records; `cell` is a categorical in manifest order in every frame."""

    root: Path
    cells: pd.DataFrame
    """One row a cell of the manifest: settings, the attempt used, its status and results."""
    steps: pd.DataFrame
    """One row a cell and mini-batch, over all ranks: wall_s the slowest rank's, samples all
    replicas', bubble the waited share of rank-time; `kept` says whether it counts (no warm-up),
    `outlier` marks and drops nothing. Only steps that every rank recorded."""
    ranks: pd.DataFrame
    """One row a rank and mini-batch: the fields of StepRecord, with cell, rank, stage, replica."""
    groups: pd.DataFrame
    """Forward and backward seconds a group of layers, rank and mini-batch."""
    spans: pd.DataFrame
    """What each rank did inside mini-batches, in runs with `spans: true`."""
    attempts: pd.DataFrame
    """One row an attempt, with its status and whether its records are used."""
    phases: pd.DataFrame
    """One row a cell and phase: warm-up, outliers, and noise of the machine."""
    settings: tuple[str, ...]
    """The columns of `cells` that determine what is measured: all settings but seed and repeat."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """From provenance.json: commit, versions, host, command line of the submission."""


def load(run: Path | str) -> Run:
    """Read a run folder, which may have been copied from elsewhere.

    Of each cell the newest valid attempt is read, else the newest done one, else the newest that
    ended; attempts that have not ended are listed in `attempts` and not read. Raises InputError
    for a path that is no run folder, for damaged records and for records of another schema.
    """
    paths = RunPaths(Path(run))
    if not paths.root.is_dir():
        raise InputError(paths.root, None, "no such folder", "a run folder")
    manifest = read_manifest(paths.manifest)
    attempts_of = [read_attempts(paths.cell(cell.id)) for cell in manifest]
    chosen = [choose_attempt(attempts) for attempts in attempts_of]
    files = [
        file
        for number, attempt in enumerate(chosen)
        if attempt is not None
        for file in _rank_files(number, manifest[number], attempt, attempts_of[number])
    ]
    frames = read_rank_files(files)
    names = [cell.id for cell in manifest]
    ranks, redone = _rank_frame(frames, files, names)
    cells = pd.DataFrame(
        [
            cell_row(cell, attempt, attempts, headers)
            for cell, attempt, attempts, headers in zip(
                manifest,
                chosen,
                attempts_of,
                _headers_by_cell(frames, files, len(names)),
                strict=True,
            )
        ]
    )
    cells["cell"] = pd.Categorical(cells["cell"], names)
    cells["redone"] = redone
    steps, phases = mark_steps(_step_frame(ranks, cells["world_size"].to_numpy()))
    keys = {key: None for cell in manifest for key in flat_settings(cell.experiment)}
    return Run(
        root=paths.root,
        cells=cells,
        steps=steps,
        ranks=ranks,
        groups=_with_ranks(frames.groups, files, frames, names),
        spans=_with_ranks(frames.spans, files, frames, names),
        attempts=pd.DataFrame(
            [
                attempt_row(cell, attempt, used)
                for cell, attempts, used in zip(manifest, attempts_of, chosen, strict=True)
                for attempt in attempts
            ],
            columns=["cell", "attempt", "status", "valid", "used", "resumed_from", "failure"],
        ),
        phases=add_noise_columns(phases, ranks),
        settings=tuple(keys),
        provenance=_read_provenance(paths.provenance),
    )


def _read_provenance(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(path, None, f"damaged JSON ({error})", "as written") from None
    return raw if isinstance(raw, dict) else {}


def _rank_files(
    number: int, cell: Cell, chosen: Attempt, attempts: list[Attempt]
) -> list[RankFile]:
    """The rank files of a cell; of an attempt that is not done, those that exist."""
    warmup = cell.experiment.warmup_steps
    return [
        RankFile(path, number, part.attempt.number, part.first, part.stop, warmup)
        for part in resume_chain(chosen, attempts)
        for path in map(part.attempt.records, range(cell.experiment.layout.world_size))
        if chosen.status == "done" or path.exists()
    ]


def _headers_by_cell(
    frames: RankFrames, files: list[RankFile], cells: int
) -> list[list[dict[str, Any]]]:
    found: list[list[dict[str, Any]]] = [[] for _ in range(cells)]
    for file, header in zip(files, frames.headers, strict=True):
        if header is not None:
            found[file.cell].append(header)
    return found


def _ranks_of_files(frames: RankFrames, files: list[RankFile], names: list[str]) -> pd.DataFrame:
    """One row a file: the cell, rank, stage, replica and attempt of its records."""
    headers = [header or {} for header in frames.headers]
    place = pd.DataFrame(
        {
            "cell": pd.Categorical.from_codes([file.cell for file in files], pd.Index(names)),
            "attempt": np.array([file.attempt for file in files], np.int16),
        }
    )
    for key in ("rank", "stage", "replica"):
        place[key] = np.array([header.get(key, 0) for header in headers], np.int16)
    return place


def _with_ranks(
    frame: pd.DataFrame, files: list[RankFile], frames: RankFrames, names: list[str]
) -> pd.DataFrame:
    """`frame` with cell, rank, stage and replica instead of `source`, without repeated rows."""
    if frame.empty:
        place = _ranks_of_files(frames, files, names)
        return place.iloc[:0].drop(columns="attempt").join(frame.drop(columns="source").iloc[:0])
    place = _ranks_of_files(frames, files, names).iloc[frame["source"]].reset_index(drop=True)
    keep = ~_redone_after_resume(frame, files)
    if place["attempt"].gt(1).any():
        keep &= ~_recorded_again(frame, place)
    data = {name: place[name].array for name in ("cell", "rank", "stage", "replica")}
    data |= {name: frame[name].array for name in frame.columns if name != "source"}
    placed = pd.DataFrame(data, copy=False)
    return placed if keep.all() else placed[keep].reset_index(drop=True)


def _redone_after_resume(frame: pd.DataFrame, files: list[RankFile]) -> NDArray[np.bool_]:
    """Which rows are training steps that a later attempt repeated after its resume."""
    never = np.iinfo(np.int64).max
    stops = np.array([never if s.stop is None else s.stop for s in files], np.int64)
    training = (frame["phase"] == "train").to_numpy()
    stop = stops[frame["source"].to_numpy()]
    beyond: NDArray[np.bool_] = training & (frame["step"].to_numpy() >= stop)
    return beyond


def _warmup_after_resume(frame: pd.DataFrame, files: list[RankFile]) -> NDArray[np.bool_]:
    """Which rows are the first training steps after a resume: they are warm-up again."""
    warm = np.array([s.first + s.warmup_steps if s.first else 0 for s in files], np.int64)
    training = (frame["phase"] == "train").to_numpy()
    early: NDArray[np.bool_] = training & (
        frame["step"].to_numpy() < warm[frame["source"].to_numpy()]
    )
    return early


def _recorded_again(frame: pd.DataFrame, place: pd.DataFrame) -> NDArray[np.bool_]:
    """Which rows are of mini-batches that the same rank recorded again in a later attempt."""
    keys = place[["cell", "rank"]].assign(phase=frame["phase"].array, step=frame["step"].array)
    newest = place["attempt"].groupby([keys[k] for k in keys], observed=True).transform("max")
    return np.asarray(place["attempt"] < newest)


def _rank_frame(
    frames: RankFrames, files: list[RankFile], names: list[str]
) -> tuple[pd.DataFrame, NDArray[Any]]:
    """The sorted frame of rank records, and how many training steps each cell repeated."""
    frames.steps["warmup"] |= _warmup_after_resume(frames.steps, files)
    ranks = _with_ranks(frames.steps, files, frames, names)
    order = np.lexsort(
        [
            ranks["rank"].to_numpy(),
            ranks["step"].to_numpy(),
            ranks["phase"].cat.codes.to_numpy(),
            ranks["cell"].cat.codes.to_numpy(),
        ]
    )
    ranks = ranks.iloc[order].reset_index(drop=True)
    beyond = frames.steps[_redone_after_resume(frames.steps, files)]
    cell_of = np.array([file.cell for file in files], np.int64)
    again = pd.DataFrame({"cell": cell_of[beyond["source"]], "step": beyond["step"].to_numpy()})
    counts = again.drop_duplicates()["cell"].value_counts()
    return ranks, counts.reindex(range(len(names)), fill_value=0).to_numpy()


def _step_frame(ranks: pd.DataFrame, world: NDArray[Any]) -> pd.DataFrame:
    """One row a mini-batch, over all ranks; `ranks` is sorted by cell, phase, step, rank."""
    cell, phase = ranks["cell"].cat.codes.to_numpy(), ranks["phase"].cat.codes.to_numpy()
    step = ranks["step"].to_numpy()
    new = np.ones(len(ranks), bool)
    new[1:] = (np.diff(cell) != 0) | (np.diff(phase) != 0) | (np.diff(step) != 0)
    starts = np.flatnonzero(new)
    if not starts.size:
        starts = np.array([], np.intp)
    first = ranks.iloc[starts].reset_index(drop=True)
    steps = first[["cell", "phase", "step", "epoch", "warmup"]].copy()

    def over(values: NDArray[Any], how: np.ufunc) -> NDArray[Any]:
        return how.reduceat(values, starts) if starts.size else values[:0]

    wall = ranks["wall_s"].to_numpy()
    steps["wall_s"] = over(wall, np.maximum)
    # All stages of a replica have the same samples: count the first stage's only.
    first_stage = ranks["stage"].to_numpy() == 0
    steps["samples"] = over(np.where(first_stage, ranks["samples"].to_numpy(), 0), np.add)
    with np.errstate(invalid="ignore", divide="ignore"):
        steps["bubble"] = over(ranks["wait_s"].to_numpy(), np.add) / over(wall, np.add)
    for name in ("cpu_s", "data_s", "peak_rss_mib", "peak_device_mib"):
        steps[name] = over(ranks[name].to_numpy(), np.fmax)
    metrics = [name for name in ranks.columns if name not in STEP_COLUMNS | _RANK_COLUMNS]
    for name in ("loss", *metrics):
        steps[name] = over(ranks[name].to_numpy(), np.fmax)
    recorded = np.diff(np.append(starts, len(ranks)))
    whole = recorded == world[steps["cell"].cat.codes.to_numpy()]
    return steps if whole.all() else steps[whole].reset_index(drop=True)
