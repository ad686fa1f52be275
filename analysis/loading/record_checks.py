"""Whether records are those of their cell, all of them, as they were written, and possible.

Only of cells that are valid: what an audit refused is in no average, and is shown as it is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.loading.attempts import Attempt
from analysis.loading.part_checks import PART_SECONDS, check_parts
from analysis.loading.rank_files import RankFile, RankFrames
from analysis.loading.record_frames import REPLICA_LOSS, STEP_COLUMNS, TIMED_PARTS, metric_name
from analysis.loading.sampled_checks import DRAWN, Rows, check_sampled, impossible
from analysis.loading.weights_checks import WEIGHTS_S, check_weights
from gnnhpc.core.errors import InputError
from gnnhpc.core.json_files import parse_object, read_bytes
from gnnhpc.experiment.manifest import Cell
from gnnhpc.records.schema import final_key

_SECONDS = ("start_s", "cpu_s", "forward_s", "backward_s", "allreduce_s", "optimizer_s", "data_s")
_BUSY = ("forward_s", "backward_s", "allreduce_s", "optimizer_s")
_IF_TOLD = (
    *("waiting_cpu_s", "other_cpu_s", "run_delay_s", "steal_s", "involuntary_switches"),
    *("peak_rss_mib", "peak_device_mib", "grad_norm"),
)
"""Never negative, in records that have them."""
_SUM_S = 1e-6
"""Of numbers with nine digits after the point."""
_STAMP_TOLERANCE_S = 1e-4
"""Between two readings of a clock, as at a step's begin for its stamp and for its length."""


def check_records(
    manifest: Sequence[Cell],
    chosen: Sequence[Attempt | None],
    files: Sequence[RankFile],
    frames: RankFrames,
) -> dict[int, str]:
    """What is wrong with cells, by position: the file, what is wrong in it, and what should be.

    `chosen` is the attempt of each cell that is used; `files` and `frames` are of all that was
    read, as `read_rank_files` returns them.
    """
    columns = _columns(frames.steps)
    starts = _starts(frames.steps, files)
    of_parts = {name: frames.parts[name].to_numpy() for name in PART_SECONDS}
    part_starts = _starts(frames.parts, files)
    span_parts, span_starts = frames.spans["part"].to_numpy(), _starts(frames.spans, files)
    of_weights = (frames.spans["name"] == "weights").to_numpy()
    numbers_of: dict[int, list[int]] = {}
    for number, file in enumerate(files):
        numbers_of.setdefault(file.cell, []).append(number)
    wrong = {}
    for position, (cell, attempt) in enumerate(zip(manifest, chosen, strict=True)):
        if attempt is None or not attempt.valid:
            continue
        try:
            _check_result(cell, attempt)
            for number in numbers_of.get(position, []):
                rows = _of_file(columns, starts[number : number + 2])
                _check_file(rows, files[number], frames.headers[number], cell, attempt)
                spans = slice(*span_starts[number : number + 2])
                check_parts(
                    rows,
                    _of_file(of_parts, part_starts[number : number + 2]),
                    span_parts[spans],
                    files[number],
                    cell.experiment,
                )
                check_weights(rows, of_weights[spans], files[number], cell.experiment)
            _check_digests(attempt)
        except InputError as error:
            wrong[position] = str(error)
    return wrong


def _starts(frame: pd.DataFrame, files: Sequence[RankFile]) -> NDArray[np.intp]:
    """Where each file's rows begin, and where the last one's end."""
    return np.searchsorted(frame["source"].to_numpy(), np.arange(len(files) + 1))


def _of_file(columns: Rows, between: NDArray[np.intp]) -> Rows:
    return {name: values[slice(*between)] for name, values in columns.items()}


def _check_file(
    rows: Rows, file: RankFile, header: Mapping[str, Any] | None, cell: Cell, attempt: Attempt
) -> None:
    _check_header(header, cell, file, attempt)
    _check_steps(rows, file, attempt)
    if attempt.result is not None and attempt.result.records:
        _check_warmup(rows, file, cell.experiment.warmup_steps)
        if cell.experiment.epochs_end_unevenly:
            check_sampled(rows, file, header, cell.experiment, attempt)
        else:
            _check_samples(rows, file, cell.experiment.batch_size)
        if file.attempt == attempt.number:
            _check_final(rows, attempt)
    _check_times(rows, file)


def _columns(steps: pd.DataFrame) -> Rows:
    """What is checked, as arrays: one file's share of a frame of thousands is slow to take."""
    names = (
        *("step", "epoch", "warmup", "samples", "loss", "wall_s", TIMED_PARTS),
        *("recompute_s", WEIGHTS_S, "wait_s", *_SECONDS, *_IF_TOLD, *DRAWN),
    )
    phase = np.asarray(steps["phase"].astype(str), dtype=object)
    metrics = [str(name) for name in steps if name not in STEP_COLUMNS | {"source"}]
    return {"phase": phase} | {name: steps[name].to_numpy() for name in (*names, *metrics)}


def _check_result(cell: Cell, attempt: Attempt) -> None:
    result, path = attempt.result, attempt.paths.result
    assert result is not None
    if result.cell != cell.id:
        raise InputError(path, "cell", result.cell, f"{cell.id}, whose folder this is")
    if result.attempt != attempt.number:
        raise InputError(path, "attempt", result.attempt, f"{attempt.number}, as its folder says")
    if result.records and not result.audit:
        raise InputError(path, "audit", "no check", "the checks of every attempt that is done")
    planned = cell.experiment.model_dump(mode="json")
    for key in cell.experiment.data.elsewhere:
        planned["data"].pop(key, None)
    differs = _difference(planned, result.experiment)
    if differs is not None:
        raise InputError(path, *differs)


def _difference(
    planned: Mapping[str, Any], found: Mapping[str, Any]
) -> tuple[str, Any, str] | None:
    """The first setting that both have and that is not the same: its name, found, planned."""
    for key, value in planned.items():
        if key not in found or found[key] == value:
            continue
        if isinstance(value, dict) and isinstance(found[key], dict):
            within = _difference(value, found[key])
            if within is not None:
                return f"experiment.{key}.{within[0]}", within[1], within[2]
            continue
        return key, found[key], f"{value}, as the manifest says"
    return None


def _check_header(
    header: Mapping[str, Any] | None, cell: Cell, file: RankFile, attempt: Attempt
) -> None:
    if header is None:
        raise InputError(file.path, None, "no header", "the records of a rank")
    rank = int(file.path.stem.removeprefix("rank-"))
    for key, wanted in (("cell", cell.id), ("attempt", file.attempt), ("rank", rank)):
        if header[key] != wanted:
            raise InputError(file.path, key, header[key], f"{wanted}, as its path says")
    told = None if attempt.result is None else attempt.result.provenance.get("threads")
    if file.attempt == attempt.number and told not in (None, header["threads"]):
        allowed = f"{header['threads']}, as {file.path.name} says"
        raise InputError(attempt.paths.result, "provenance.threads", told, allowed)


def _check_steps(rows: Rows, file: RankFile, attempt: Attempt) -> None:
    """Each phase's steps once and in order, from where the attempt began to where it counts."""
    result = attempt.result
    assert result is not None
    stop = result.train_steps if file.stop is None else file.stop
    ends = {"train": stop, "test": result.test_steps if file.stop is None else 0}
    for phase, end in ends.items():
        steps = rows["step"][rows["phase"] == phase]
        if phase == "train" and len(steps) and steps[0] != file.first:
            raise InputError(file.path, "first train step", int(steps[0]), str(file.first))
        gaps = np.flatnonzero(np.diff(steps) != 1)
        if len(gaps):
            found = f"{steps[gaps[0] + 1]} after {steps[gaps[0]]}"
            raise InputError(file.path, f"{phase} step", found, "each step once, in order")
        done = int(steps[-1]) + 1 if len(steps) else 0
        # An attempt that another resumed may have gone further.
        if done < end or (file.stop is None and done > end):
            raise InputError(file.path, f"{phase} steps", f"{done} steps", f"{end}, all of them")


def _check_warmup(rows: Rows, file: RankFile, warmup_steps: int) -> None:
    """The first steps of each phase are marked; older records marked none after a resume."""
    for phase in ("train", "test"):
        mine = {name: values[rows["phase"] == phase] for name, values in rows.items()}
        wanted = np.arange(len(mine["step"])) < warmup_steps
        wrong = np.flatnonzero(mine["warmup"] != wanted)
        if len(wrong):
            allowed = f"{wanted[wrong[0]]}: the first {warmup_steps} of a phase are warm-up"
            raise impossible(mine, wrong[0], file, "warmup", allowed)


def _check_samples(rows: Rows, file: RankFile, batch_size: int | None) -> None:
    """Every replica's mini-batch of images has as many; of a graph the result says all nodes."""
    wrong = np.flatnonzero(rows["samples"] != batch_size)
    if batch_size is not None and len(wrong):
        raise impossible(rows, wrong[0], file, "samples", f"{batch_size}, as the manifest says")


def _check_final(rows: Rows, attempt: Attempt) -> None:
    """The losses and metrics in the result are those of the last step of each phase."""
    assert attempt.result is not None
    for phase in ("train", "test"):
        for name in ("loss", *(name for name in rows if name not in STEP_COLUMNS)):
            values = rows[name][rows["phase"] == phase]
            plain = metric_name(name)
            key = final_key(phase, plain)
            told = attempt.result.final.get(key)
            # What is named after a split is of an evaluation.
            of_other_phase = phase == "train" and key == plain
            if told is None or plain == REPLICA_LOSS or of_other_phase:
                continue
            # Only the last stage has any.
            if not len(values) or math.isnan(values[-1]):
                continue
            # Records have nine digits after the point.
            if not math.isclose(values[-1], told, rel_tol=1e-7, abs_tol=1e-8):
                what = f"{plain.replace('_', ' ')} of the last {phase} step"
                raise InputError(
                    attempt.paths.result, f"final.{key}", told, f"{values[-1]:.9g}, the {what}"
                )


def _check_times(rows: Rows, file: RankFile) -> None:
    """Seconds are numbers, none negative; a step lasts some time, and follows the one before."""
    wall = rows["wall_s"]
    for name in ("wall_s", *_SECONDS):
        values = rows[name]
        wrong = np.flatnonzero(
            ~(np.isfinite(values) & (values >= 0)) | ((name == "wall_s") & ~(wall > 0))
        )
        if len(wrong):
            raise impossible(rows, wrong[0], file, name, "seconds, as a clock gives them")
    for name in _IF_TOLD:
        wrong = np.flatnonzero(rows[name] < 0)
        if len(wrong):
            raise impossible(rows, wrong[0], file, name, "0 or more")
    rest = wall - sum(rows[name] for name in _BUSY)
    # A device's clock and older records may tell a rest that is less than nothing.
    newer = ~np.isnan(rows["waiting_cpu_s"].astype(float))
    wrong = np.flatnonzero(
        (newer & ~(np.abs(rows["wait_s"] - rest) <= _SUM_S))
        | ~(rows["wait_s"] >= -_STAMP_TOLERANCE_S)
    )
    if len(wrong):
        allowed = f"{max(0.0, rest[wrong[0]]):.6f}, the rest of wall_s"
        raise impossible(rows, wrong[0], file, "wait_s", allowed)
    again = rows["recompute_s"]
    wrong = np.flatnonzero((again < 0) | (again > rows["backward_s"] + _STAMP_TOLERANCE_S))
    if len(wrong):
        allowed = f"0 to {rows['backward_s'][wrong[0]]:.6f}, as it is a part of backward_s"
        raise impossible(rows, wrong[0], file, "recompute_s", allowed)
    starts = rows["start_s"]
    # Such a mini-batch is made between the step before and its own.
    drawing = np.where(np.isnan(rows["sampled_edges"]), 0.0, rows["data_s"])
    late = np.flatnonzero(starts[1:] - drawing[1:] < starts[:-1] + wall[:-1] - _STAMP_TOLERANCE_S)
    if len(late):
        after = f"after the step before, which ended at {starts[late[0]] + wall[late[0]]:.6f} s"
        if drawing[late[0] + 1] > 0.0:
            after += f", and data_s {drawing[late[0] + 1]:.6f}"
        raise impossible(rows, late[0] + 1, file, "start_s", after)


def _check_digests(attempt: Attempt) -> None:
    """Files are as they were when the result was written; older results do not say."""
    assert attempt.result is not None
    for name, written in attempt.result.records.items():
        # Those of attempts that it went on from lie beside its own folder.
        folder, earlier = attempt.paths.root, name.removeprefix("../")
        path = folder / name if earlier == name else folder.parent / earlier
        size = written.get("size")
        if not isinstance(size, int) or size < 0:
            where = f"records.{name}.size"
            raise InputError(attempt.paths.result, where, repr(size), "the file's size in bytes")
        try:
            content = read_bytes(path, "the records that result.json names")
        except FileNotFoundError:
            raise InputError(path, None, "no such file", "as result.json names it") from None
        if hashlib.sha256(content[:size]).hexdigest() != written.get("sha256"):
            raise InputError(
                path, "content", "changed since it was written", "as result.json has it"
            )
        if earlier == name and not _only_events(content[size:], path):
            raise InputError(path, "content", f"records after byte {size}", "none after its end")


def _only_events(lines: bytes, path: Path) -> bool:
    """What a rank may still write once the last step is recorded."""
    found = [parse_object(line, path, "one record a line") for line in lines.splitlines()]
    return all(each.get("kind") == "event" for each in found)
