"""Defects of files: a run folder made by real runs, in which one thing is then changed."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnnhpc.experiment.manifest import read_manifest
from gnnhpc.kernels import build
from gnnhpc.records.content_digest import with_digest
from gnnhpc.records.run_paths import AttemptPaths, RunPaths
from gnnhpc.records.schema import NOT_DIGESTED
from tests.defects.patching import replace
from tests.defects.settings import VIG
from tests.tools.cells import manifest_of, run

DAMAGED, MIXED = "damaged and foreign records", "mixed codes, sites, machines"
BASELINE, FIRST, SECOND = range(3)
"""The cells of the folder, in the order of its manifest."""

ONE_THREAD = {"GNNHPC_THREADS": "1"}
Change = Callable[[Path], None]
Line = dict[str, Any]


@dataclass(frozen=True)
class FolderDefect:
    """A change of a run folder."""

    name: str
    kind: str
    change: Change


FOLDER_DEFECTS: dict[str, FolderDefect] = {}


def changed(name: str, kind: str) -> Callable[[Change], Change]:
    def register(change: Change) -> Change:
        FOLDER_DEFECTS[name] = FolderDefect(name, kind, change)
        return change

    return register


def real_folder(folder: Path) -> Path:
    """A sequential cell and two repeats of a pipeline, each run on its ranks."""
    experiment = VIG.experiment()
    baseline = {"layout": type(experiment.layout)(), "microbatches": 1}
    again = {"repeat": 1}
    cells = [experiment.model_copy(update=changes) for changes in (baseline, {}, again)]
    for cell in manifest_of(folder, *cells):
        assert run(folder, cell, env=ONE_THREAD).result.valid
    return folder


def attempt(folder: Path, number: int) -> AttemptPaths:
    cell = read_manifest(RunPaths(folder).manifest)[number]
    return RunPaths(folder).cell(cell.id).attempts()[-1]


def change_lines(
    path: Path, change: Callable[[int, dict[str, Any]], dict[str, Any] | None]
) -> None:
    """Replace each record of a file but events, counted from its header, 0; None leaves it out."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    numbers = itertools.count()
    new = [line if line["kind"] == "event" else change(next(numbers), line) for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in new if line is not None))


def change_headers(folder: Path, number: int, **values: Any) -> None:
    for path in _rank_files(folder, number):
        change_lines(path, lambda n, line: line | values if n == 0 else line)


def change_result(folder: Path, number: int, change: Callable[[dict[str, Any]], None]) -> None:
    path = attempt(folder, number).result
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(raw))


def sealed(change: Change) -> Change:
    """The same change, as if the files had been written so: another machine's, not damaged."""

    def changed_and_sealed(folder: Path) -> None:
        change(folder)
        for number in (BASELINE, FIRST, SECOND):
            root = attempt(folder, number).root
            change_result(folder, number, functools.partial(_seal, root))

    return changed_and_sealed


def _seal(root: Path, raw: dict[str, Any]) -> None:
    raw["records"] = {
        path.name: {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(root.glob("rank-*.jsonl"))
    }
    raw |= with_digest(raw, NOT_DIGESTED)


def _rank_files(folder: Path, number: int) -> Iterator[Path]:
    return iter(sorted(attempt(folder, number).root.glob("rank-*.jsonl")))


def change_step(folder: Path, number: int = 8, **values: Any) -> None:
    """Change one record of a rank."""
    change_lines(
        attempt(folder, FIRST).records(1), lambda n, line: line | values if n == number else line
    )


changed("a negative step time in a record", DAMAGED)(functools.partial(change_step, wall_s=-1.0))
changed("a warm-up step counted as measured", DAMAGED)(
    sealed(functools.partial(change_step, number=2, warmup=False))
)
changed("a step time of zero in a record", DAMAGED)(functools.partial(change_step, wall_s=0.0))
changed("a step time that is no number in a record", DAMAGED)(
    functools.partial(change_step, wall_s=float("nan"))
)
changed("a record that lost its step time", DAMAGED)(functools.partial(change_step, wall_s=None))
changed("a start stamp from before the step before", DAMAGED)(
    functools.partial(change_step, start_s=0.0)
)


@changed("step times halved by hand in one rank's records", DAMAGED)
def halved(folder: Path) -> None:
    for path in _rank_files(folder, FIRST):
        change_lines(path, lambda n, line: line | {"wall_s": line["wall_s"] / 2} if n else line)


@changed("a rank's records of another cell", DAMAGED)
def foreign_records(folder: Path) -> None:
    shutil.copy(attempt(folder, SECOND).records(1), attempt(folder, FIRST).records(1))


@changed("two ranks' records under each other's name", DAMAGED)
def swapped_records(folder: Path) -> None:
    first, second = (attempt(folder, FIRST).records(rank) for rank in range(2))
    texts = first.read_text(), second.read_text()
    second.write_text(texts[0])
    first.write_text(texts[1])


@changed("a rank without records", DAMAGED)
def no_records(folder: Path) -> None:
    attempt(folder, FIRST).records(1).unlink()


@changed("a step missing from one rank's records", DAMAGED)
def step_missing(folder: Path) -> None:
    change_lines(attempt(folder, FIRST).records(1), lambda n, line: None if n == 8 else line)


@changed("the last steps missing from every rank's records", DAMAGED)
def end_missing(folder: Path) -> None:
    for path in _rank_files(folder, FIRST):
        change_lines(path, lambda n, line: None if n > 8 else line)


@changed("a step recorded twice", DAMAGED)
def step_twice(folder: Path) -> None:
    path = attempt(folder, FIRST).records(1)
    lines = path.read_text().splitlines(keepends=True)
    # The header, an event, five training steps and two evaluated ones.
    path.write_text("".join([*lines[:10], *lines[9:]]))


@changed("a damaged line in the middle of a rank's records", DAMAGED)
def damaged_line(folder: Path) -> None:
    path = attempt(folder, FIRST).records(1)
    lines = path.read_text().splitlines()
    lines[5] = lines[5][:40]
    path.write_text("\n".join(lines) + "\n")


@changed("records of another schema", DAMAGED)
def other_schema(folder: Path) -> None:
    change_headers(folder, FIRST, schema=7)


@changed("the result of another cell", DAMAGED)
def foreign_result(folder: Path) -> None:
    shutil.copy(attempt(folder, SECOND).result, attempt(folder, FIRST).result)


@changed("an attempt of another cell", DAMAGED)
def foreign_attempt(folder: Path) -> None:
    first, second = attempt(folder, FIRST).root, attempt(folder, SECOND).root
    shutil.rmtree(first)
    shutil.copytree(second, first)


@changed("a result cut short", DAMAGED)
def result_cut(folder: Path) -> None:
    path = attempt(folder, FIRST).result
    path.write_text(path.read_text()[:300])


@changed("an accuracy changed by hand in a result", DAMAGED)
def other_accuracy(folder: Path) -> None:
    change_result(folder, FIRST, lambda raw: raw["final"].update(test_accuracy=0.99))


changed("a result with another accuracy than its records", DAMAGED)(sealed(other_accuracy))


@changed("a result of other settings than the cell's", DAMAGED)
@sealed
def other_settings(folder: Path) -> None:
    change_result(folder, FIRST, lambda raw: raw["experiment"].update(microbatches=2))


@changed("a repeat by other code", MIXED)
@sealed
def other_code(folder: Path) -> None:
    change_headers(folder, SECOND, code="0" * 16)
    change_result(folder, SECOND, lambda raw: raw["provenance"].update(code="0" * 16))


@changed("a baseline by other code", MIXED)
@sealed
def other_baseline(folder: Path) -> None:
    change_headers(folder, BASELINE, code="0" * 16)
    change_result(folder, BASELINE, lambda raw: raw["provenance"].update(code="0" * 16))


@changed("a repeat on another CPU model", MIXED)
@sealed
def other_cpu(folder: Path) -> None:
    change_headers(folder, SECOND, cpu_model="Another CPU")


@changed("one rank on another CPU model", MIXED)
@sealed
def mixed_cpus(folder: Path) -> None:
    change_lines(
        attempt(folder, SECOND).records(1),
        lambda n, line: line | {"cpu_model": "Another CPU"} if n == 0 else line,
    )


@changed("a repeat by another version of torch", MIXED)
@sealed
def other_torch(folder: Path) -> None:
    for path in _rank_files(folder, SECOND):
        change_lines(
            path,
            lambda n, line: (
                line | {"versions": line["versions"] | {"torch": "2.0.0"}} if n == 0 else line
            ),
        )
    change_result(folder, SECOND, lambda raw: raw["provenance"]["versions"].update(torch="2.0.0"))


@changed("a repeat with two threads a rank, the other with one", MIXED)
def other_threads(folder: Path) -> None:
    _again(folder, env={"GNNHPC_THREADS": "2"})


@changed("a repeat without a compiler", MIXED)
def other_kernels(folder: Path) -> None:
    _again(folder, env=ONE_THREAD, plant=_without_compiler)


@changed("a repeat whose losses leave the others'", MIXED)
@sealed
def other_losses(folder: Path) -> None:
    for path in _rank_files(folder, SECOND):
        change_lines(
            path,
            lambda n, line: line | {"loss": line["loss"] * 1.001} if line.get("loss") else line,
        )

    def final(raw: dict[str, Any]) -> None:
        raw["final"] |= {key: raw["final"][key] * 1.001 for key in ("train_loss", "test_loss")}

    change_result(folder, SECOND, final)


def _again(folder: Path, **how: Any) -> None:
    """Run the second repeat anew; its newest valid attempt is what counts."""
    cell = read_manifest(RunPaths(folder).manifest)[SECOND]
    run(folder, cell, **how)


def _without_compiler() -> None:
    replace(build, "load_kernel", lambda name: None)
