"""An attempt that resumes, and files of a run folder that are damaged or changed."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gnnhpc.batches.image_batches import ImageBatches
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.core.versioned_json import with_digest
from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.records.result_file import NOT_DIGESTED
from gnnhpc.training import checkpoint
from tests.defects import cells
from tests.defects.defect import planted

of_resume = functools.partial(
    planted, kind="resume", cell=cells.VIG, mechanism="failure", how="resume"
)


@of_resume(
    mechanism="invariants",
    words="steps of block0.grapher.fc1.weight, ",
    at=(checkpoint, "load"),
)
def a_resume_without_the_state_of_the_optimizer(original: Any, *args: Any) -> None:
    original(*args)
    args[-1].state.clear()


@of_resume(words="inputs: train step 6", at=(ImageBatches, "open"))
def a_resume_that_repeats_the_first_samples(
    original: Any, batches: ImageBatches, phase: Any, start: int, stop: int
) -> Any:
    return original(batches, phase, 0, stop - start)


BASELINE, FIRST, REPEAT = range(3)
"""The cells of `run_healthy`: a sequential one and two repeats of a pipeline."""
Line = dict[str, Any]
of_records = functools.partial(
    planted, kind="records", cell=cells.VIG, mechanism="record-audit", how="files"
)


def attempt(folder: Path, number: int = FIRST) -> AttemptPaths:
    cell = read_manifest(RunPaths(folder).manifest)[number]
    return RunPaths(folder).cell(cell.id).attempts()[-1]


def change_steps(path: Path, change: Callable[[int, Line], Line | None]) -> None:
    """Replace each step's record, counted from 0; None leaves it out."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    steps = iter(range(len(lines)))
    new = [change(next(steps), line) if line["kind"] == "step" else line for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in new if line is not None))


def change_result(folder: Path, number: int, change: Callable[[Line], None], **seal: Any) -> None:
    """Change a result; with its digests if it is `sealed`, as another machine would write it."""
    paths = attempt(folder, number)
    raw = json.loads(paths.result.read_text())
    change(raw)
    if seal.get("sealed"):
        for path in sorted(paths.root.glob("rank-*.jsonl")):
            content = path.read_bytes()
            digest = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            raw["records"][path.name] = digest
        raw |= with_digest(raw, NOT_DIGESTED)
    paths.result.write_text(json.dumps(raw))


@of_records(words="changed since it was written")
def a_step_missing_from_the_records_of_one_rank(folder: Path) -> None:
    change_steps(attempt(folder).records(1), lambda n, line: None if n == 7 else line)


@of_records(words="written")
def the_end_of_all_records_cut_off(folder: Path) -> None:
    for path in attempt(folder).root.glob("rank-*.jsonl"):
        content = path.read_text()
        path.write_text(content[: 2 * len(content) // 3])


@of_records(words="add up")
def parts_of_a_step_that_do_not_add_up(folder: Path) -> None:
    for path in attempt(folder).root.glob("rank-*.jsonl"):
        change_steps(path, lambda n, line: line | {"wall_s": line["wall_s"] / 2})
    change_result(folder, FIRST, lambda raw: None, sealed=True)


@of_records(words="changed since it was written")
def an_accuracy_edited_in_a_result(folder: Path) -> None:
    change_result(folder, FIRST, lambda raw: raw["final"].update(test_accuracy=0.99))


@of_records(mechanism="not-comparable", words="torch 2.0.0")
def a_repeat_by_another_version_of_torch(folder: Path) -> None:
    for path in attempt(folder, REPEAT).root.glob("rank-*.jsonl"):
        first, _, rest = path.read_text().partition("\n")
        header = json.loads(first)
        header["versions"]["torch"] = "2.0.0"
        path.write_text(json.dumps(header) + "\n" + rest)
    change_result(
        folder, REPEAT, lambda raw: raw["provenance"]["versions"].update(torch="2.0.0"), sealed=True
    )
