"""ViG, GAT and others on GPUs: ours against PyG's in one process, then two stages or replicas.

    python -m benchmarks.bench_gpu [--quick] [--device cpu] [--out report/gpu.csv]

Every contestant runs in a process of its own, one after another in turns, ViG's in the form and at
the batch that suit it best. Two ranks take a GPU each where there are two, by NCCL; and they share
one, through the host's memory, which shows what that costs and is no speedup. What cannot be
measured here has a row that says why. `--device cpu` tries the benchmark itself; what it measures
says nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.isolated import ROOT, BenchmarkError, call
from benchmarks.launch import Launcher, Measured
from benchmarks.ratios import paired
from benchmarks.table import Row, not_measured, show, write_csv
from gnnhpc.distributed.devices import SHARE_VARIABLE as SHARE_GPU

PUBMED = {"nodes": 19_717, "edges": 88_648, "features": 500}
LARGE = {"nodes": 100_000, "edges": 10_000_000, "features": 128}
SMALL = {"nodes": 500, "edges": 4_000, "features": 16}
Part = Callable[[], Iterator[Row]]
Run = Callable[..., Any]


@dataclass(frozen=True)
class Machine:
    """What there is to measure on, and how much of it to use."""

    torch: str
    gpus: int
    nccl: bool
    facts: dict[str, Any] | None
    device: str
    quick: bool

    @property
    def place(self) -> str:
        return "cuda" if self.device == "gpu" else "cpu"

    @property
    def turns(self) -> int:
        return 1 if self.quick else 5

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 10

    @property
    def name(self) -> str:
        if self.device == "cpu":
            return "a CPU in a GPU's place"
        facts = self.facts or {}
        return f"{facts.get('name')}, driver {facts.get('driver')}, CUDA {facts.get('cuda')}"


def main() -> int:
    """0 when all was measured that can be here; 1 when something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="in small, to try it")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--out", type=Path, default=ROOT / "report" / "gpu.csv")
    given = parser.parse_args()
    found = call("benchmarks.gpu_steps:machine")
    machine = Machine(**found, device=given.device, quick=given.quick)
    print(f"torch {machine.torch}, {machine.gpus} GPUs: {machine.facts}", flush=True)
    with tempfile.TemporaryDirectory(prefix="gnnhpc-gpu-") as folder:
        rows, failed = measure(machine, Launcher(Path(folder)))
    write_csv(given.out, rows)
    show(rows, Console(width=None if os.isatty(1) else 200))
    print(given.out)
    return 1 if failed else 0


def measure(machine: Machine, launcher: Launcher) -> tuple[list[Row], bool]:
    """All rows, told as they come; a part that fails becomes a row that says so."""
    parts: dict[str, Part] = {
        "ViG, one process": partial(vig, machine),
        "GAT on a PubMed-shaped graph, one process": partial(
            gat, machine, SMALL if machine.quick else PUBMED
        ),
        "GAT on 10 M edges, one process": partial(gat, machine, SMALL if machine.quick else LARGE),
        "other layers, one process": partial(layers, machine, SMALL if machine.quick else LARGE),
        "two ranks of one GPU": partial(two_ranks, machine, launcher, shared=True),
        "two ranks of two GPUs": partial(two_ranks, machine, launcher, shared=False),
    }
    if machine.device == "gpu" and not machine.gpus:
        why = f"no GPU that torch {machine.torch} can use"
        return [not_measured(what, None, why) for what in parts], False
    rows: list[Row] = []
    failed = False
    for part, rows_of in parts.items():
        try:
            for row in rows_of():
                rows.append(replace(row, what=f"{row.what}; on {machine.name}"))
                print(f"{rows[-1].what}: {rows[-1].outcome}", flush=True)
        except BenchmarkError as error:
            failed = True
            rows.append(not_measured(part, None, str(error)))
            print(f"{part}: {error}", flush=True)
    return rows, failed


def vig(machine: Machine) -> Iterator[Row]:
    """Seconds an image, each in the form and at the batch that suit it best."""
    ours = [("fused", images) for images in ((8,) if machine.quick else (1_000, 4_000))]
    theirs = [
        (form, images)
        for form in ("reference", "edge_index", "adj_t")
        for images in ((2,) if machine.quick else (50, 100, 250, 500, 1_000))
    ]
    best = [_best(entries, machine) for entries in (ours, theirs)]
    taken = _in_turns({form: _vig_run(form, images, machine) for form, images in best}, machine)
    seconds = [[median(each["seconds"]) / images for each in taken[form]] for form, images in best]
    (_, ours_at), (form, theirs_at) = best
    yield Row(
        f"ViG training step, 8 blocks, seconds an image: ours at {ours_at} images, PyG's "
        f"{form} form at {theirs_at}",
        paired(*seconds),
        None,
    )


def _vig_run(form: str, images: int, machine: Machine) -> Run:
    return partial(call, "benchmarks.gpu_steps:vig", form=form, images=images, device=machine.place)


def gat(machine: Machine, sizes: dict[str, int]) -> Iterator[Row]:
    """Seconds an epoch, and the memory that it takes."""
    runs = {
        form: partial(call, "benchmarks.gpu_steps:gat", form=form, device=machine.place, **sizes)
        for form in ("fused", "pyg")
    }
    taken = _in_turns(runs, machine)
    seconds = [[median(each["seconds"]) for each in taken[form]] for form in runs]
    peaks = [[each["peak_mib"] for each in taken[form]] for form in runs]
    graph = f"{sizes['nodes']:,} nodes, {sizes['edges']:,} edges, {sizes['features']} features"
    yield Row(f"GAT epoch, {graph}: seconds, ours and PyG's GATConv", paired(*seconds), None)
    yield Row(f"GAT epoch, {graph}: peak MiB, ours and PyG's GATConv", paired(*peaks), None)


def layers(machine: Machine, sizes: dict[str, int]) -> Iterator[Row]:
    """Seconds an epoch of both, which take turns in a process of each of machine.turns."""
    run = partial(call, "benchmarks.gpu_steps:layers", device=machine.place, **sizes)
    taken = [run(rounds=machine.rounds) for _ in range(machine.turns)]
    graph = f"{sizes['nodes']:,} nodes, {sizes['edges']:,} edges, {sizes['features']} features"
    for model in taken[0]:
        seconds = [[median(each[model][form]) for each in taken] for form in ("fused", "pyg")]
        yield Row(f"{model} epoch, {graph}: seconds, ours and PyG's", paired(*seconds), None)


def _best(entries: Sequence[tuple[str, int]], machine: Machine) -> tuple[str, int]:
    """The form and batch that take least for each image; one that fails, as for memory, loses."""
    found = []
    errors = []
    for form, images in entries:
        try:
            taken = _vig_run(form, images, machine)(rounds=2)
            found.append((median(taken["seconds"]) / images, form, images))
        except BenchmarkError as error:
            errors.append(error)
    if not found:
        raise errors[-1]
    _, form, images = min(found)
    return form, images


def _in_turns(runs: Mapping[str, Run], machine: Machine) -> dict[str, list[Any]]:
    """What each run gave in each turn."""
    taken: dict[str, list[Any]] = {form: [] for form in runs}
    for _ in range(machine.turns):
        for form, run in runs.items():
            taken[form].append(run(rounds=machine.rounds))
    return taken


def two_ranks(machine: Machine, launcher: Launcher, *, shared: bool) -> Iterator[Row]:
    """Seconds a step of two stages and of two replicas, against one process."""
    where = "2 ranks of one GPU" if shared else "2 ranks of two GPUs"
    cells = {"ViG": _vig_cell(machine), "GAT": _gat_cell(machine)}
    why = None if shared or machine.device == "cpu" else _why_not_nccl(machine)
    for model, changes in cells.items():
        names = {
            "pp2": f"{model} pp2, {where}: seconds a step, and one process with as many "
            "micro-batches",
            "dp2": f"{model} dp2, {where}: seconds a step of twice the samples, and one process"
            if model == "ViG"
            else f"{model} dp2, {where}: seconds a step, and one process with twice the chunks",
        }
        for layout, what in names.items():
            if why is not None:
                yield not_measured(what, None, why)
                continue
            yield _against_one_process(machine, launcher, layout, what, changes, shared=shared)


def _against_one_process(
    machine: Machine,
    launcher: Launcher,
    layout: str,
    what: str,
    changes: dict[str, Any],
    *,
    shared: bool,
) -> Row:
    count = 4
    # Replicas of a graph divide its chunks; those of images have each a mini-batch.
    whole = "batch_size" not in changes or changes["batch_size"] is None
    halved = count // 2 if layout == "dp2" and whole else count
    walls: dict[str, list[float]] = {layout: [], "seq": []}
    transfers = None
    with _gpus_shown(shared=shared and machine.device == "gpu"):
        for _ in range(machine.turns):
            for name, chunks in ((layout, halved), ("seq", count)):
                run = launcher.run(name, chunks, device=machine.device, **changes)
                walls[name] += _walls_of_a_valid(run)
                if name == layout:
                    facts = run.ranks[0][0].get("device_facts") or {}
                    transfers = facts.get("transfers")
    by = f" ({transfers})" if transfers else ""
    return Row(what + by, paired(walls[layout], walls["seq"]), None)


def _walls_of_a_valid(run: Measured) -> list[float]:
    """Raises BenchmarkError for a run that its audit found invalid."""
    wrong = [check.detail for check in run.result.audit if check.verdict == "invalid"]
    if wrong:
        raise BenchmarkError(f"{run.experiment.id} is invalid: {wrong[0]}")
    return run.walls


@contextlib.contextmanager
def _gpus_shown(*, shared: bool) -> Iterator[None]:
    """To ranks that are to share: the first GPU, and that they may."""
    if not shared:
        yield
        return
    before = {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", SHARE_GPU)}
    first = (before["CUDA_VISIBLE_DEVICES"] or "0").partition(",")[0]
    os.environ |= {"CUDA_VISIBLE_DEVICES": first, SHARE_GPU: "1"}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _why_not_nccl(machine: Machine) -> str | None:
    if machine.gpus < 2:
        return f"{machine.gpus} GPU, and NCCL needs one for each of two ranks"
    return None if machine.nccl else f"torch {machine.torch} has no NCCL"


def _vig_cell(machine: Machine) -> dict[str, Any]:
    if machine.quick:
        small = {"name": "synthetic-cifar10", "train": 64, "test": 64, "image_size": 16}
        return {"batch_size": 8, "train_steps": 4, "data": small}
    return {"batch_size": 2_000, "train_steps": 22}


def _gat_cell(machine: Machine) -> dict[str, Any]:
    graph = {"name": "synthetic-citation", **(SMALL if machine.quick else LARGE)}
    return {
        "model": {"name": "gat"},
        "data": graph,
        "batch_size": None,
        "train_steps": 4 if machine.quick else 22,
        "chunks": "contiguous",
    }


if __name__ == "__main__":
    raise SystemExit(main())
