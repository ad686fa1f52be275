"""Many processes: how much of the machine pipelines and replicas use, and how soon they start."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.launch import WARMUP, Launcher, Measured
from benchmarks.ratios import against_limit, paired
from benchmarks.table import Parts, Row, not_measured
from gnnhpc.core.bounds import bound
from gnnhpc.core.schedule import ScheduleName

ENGINES = ("native", "pipelining")
MICROBATCHES = (5, 10, 20)
INTERLEAVED_MICROBATCHES, PARTS = (4, 10), (1, 2, 4)
OF_BOUND_GOAL = 0.95
ONE_BOUND: tuple[ScheduleName, ...] = ("gpipe", "1f1b")
"""Schedules of the same bound, of which 1F1B holds fewer micro-batches at a time."""
START_LIMIT_S = 6.0
SMALL = {"name": "vig", "blocks": 2}
SMALL_IMAGES = {"name": "synthetic-cifar10", "train": 64, "test": 64, "image_size": 16}
# PyG's form keeps every hidden activation, so that what a schedule holds shows in memory.
KEEPS_MUCH = {"name": "vig", "blocks": 8, "implementation": "pyg"}
# Four blocks of small layers and a readout that weighs more than all of them.
UNEQUAL = {"name": "vig", "blocks": 4, "readout_width": 131_072}
EQUAL_COUNTS = (5, 4)
# Products take most of the time of wide layers, and of a backward half of theirs is of weights.
WIDE = {"name": "gcn", "layers": 4, "hidden": 256}
WIDE_GRAPH = {"name": "reddit-shaped", "nodes": 40_000, "edges": 400_000, "features": 256}
SMALL_GRAPH = {"name": "reddit-shaped", "nodes": 2_000, "edges": 20_000, "features": 32}
WEIGHTS_MICROBATCHES = (4, 8)


def parts(folder: Path, *, quick: bool) -> Parts:
    launcher = Launcher(folder)
    cpus = len(os.sched_getaffinity(0))
    return {
        "pp2": partial(_pipelines, launcher, "pp2", 0.97, cpus, quick=quick),
        "pp4": partial(_pipelines, launcher, "pp4", 0.95, cpus, quick=quick),
        "best sequential": partial(_best_sequential, launcher, cpus, quick=quick),
        "weights apart": partial(_weights_apart, launcher, cpus, quick=quick),
        "interleaved": partial(_interleaved, launcher, cpus, quick=quick),
        "replicas": partial(_replicas, launcher, cpus, quick=quick),
        "schedules": partial(_schedules, launcher, cpus, quick=quick),
        "cuts": partial(_cuts, launcher, cpus, quick=quick),
        "start-up": partial(_start_up, launcher, quick=quick),
    }


def _pipelines(
    launcher: Launcher, layout: str, goal: float, cpus: int, *, quick: bool
) -> Iterator[Row]:
    """Efficiency: the ideal of each step's own stage seconds over its wall; torch's engine once,
    to compare."""
    needed = int(layout.removeprefix("pp"))
    counts = MICROBATCHES[:1] if quick else MICROBATCHES
    names = {
        (count, engine): f"{layout} efficiency, ViG, {count} micro-batches, {engine}: "
        "seconds a step, ideal and real"
        for count in counts
        for engine in ENGINES
        if engine == "native" or count == counts[len(counts) // 2]
    }
    goals = {key: goal if key[1] == "native" else None for key in names}
    if cpus < needed:
        for key, what in names.items():
            yield not_measured(what, goals[key], f"{cpus} CPUs, {needed} ranks")
        return
    walls: dict[tuple[int, str], list[float]] = {key: [] for key in names}
    ideals: dict[tuple[int, str], list[float]] = {key: [] for key in names}
    for _ in range(1 if quick else 2):
        for key in names:
            run = launcher.run(layout, key[0], engine=key[1], **_batches(quick, 20, 12))
            walls[key] += run.walls
            ideals[key] += run.ideals
    for key, what in names.items():
        yield Row(what, paired(walls[key], ideals[key]), goals[key])


@dataclass(frozen=True)
class _TwoStages:
    """pp2 of ViG under GPipe or 1F1B, or interleaved in several parts a stage."""

    microbatches: int
    parts: int = 1
    schedule: ScheduleName = "gpipe"

    @property
    def bound(self) -> float:
        return bound(1, 2, self.microbatches, self.parts)

    @property
    def changes(self) -> dict[str, Any]:
        return {"schedule": self.schedule, **({"parts": self.parts} if self.parts > 1 else {})}

    @property
    def what(self) -> str:
        return f"pp2 against the best sequential run, ViG, {self.microbatches} micro-batches"

    @property
    def named(self) -> str:
        if self.parts > 1:
            return f"interleaved in {self.parts} parts a stage"
        return {"gpipe": "GPipe", "1f1b": "1F1B"}[self.schedule]

    @property
    def of_bound(self) -> str:
        return f"seconds a step, at the bound {self.bound:.3f} and real"


def _best_sequential(launcher: Launcher, cpus: int, *, quick: bool) -> Iterator[Row]:
    """Speedup of two stages over the best sequential run, which has one micro-batch, as a share of
    the schedule's bound: what it might take, beside what it takes."""
    counts = MICROBATCHES[:1] if quick else MICROBATCHES
    pipelines = [_TwoStages(count, 1, name) for count in counts for name in ONE_BOUND]
    names = {one: f"{one.what}, {one.named}: {one.of_bound}" for one in pipelines}
    if cpus < 2:
        for what in names.values():
            yield not_measured(what, OF_BOUND_GOAL, f"{cpus} CPU, 2 ranks")
        return
    alone, walls = _in_turn(launcher, pipelines, quick=quick)
    for one, mine in walls.items():
        at_bound = paired(mine, [seconds / one.bound for seconds in alone])
        yield Row(names[one], at_bound, OF_BOUND_GOAL)


def _interleaved(launcher: Launcher, cpus: int, *, quick: bool) -> Iterator[Row]:
    """Likewise of several parts a stage, whose bound is higher, beside GPipe; and the speedup."""
    counts = INTERLEAVED_MICROBATCHES[:1] if quick else INTERLEAVED_MICROBATCHES
    pipelines = [
        _TwoStages(count, parts, "interleaved" if parts > 1 else "gpipe")
        for count in counts
        for parts in PARTS
    ]
    names = {
        one: [
            f"{one.what}, {one.named}: {of}"
            for of in ("seconds a step, alone and in two stages", one.of_bound)
        ]
        for one in pipelines
    }
    if cpus < 2:
        for what in itertools.chain(*names.values()):
            yield not_measured(what, None, f"{cpus} CPU, 2 ranks")
        return
    alone, walls = _in_turn(launcher, pipelines, quick=quick)
    for one, (speedup, of_bound) in names.items():
        yield Row(speedup, paired(walls[one], alone), None)
        at_bound = paired(walls[one], [seconds / one.bound for seconds in alone])
        yield Row(of_bound, at_bound, None)


def _weights_apart(launcher: Launcher, cpus: int, *, quick: bool) -> Iterator[Row]:
    """Zero-bubble and ZBV against 1F1B, of a model whose layers leave their weights' gradients."""
    graph = SMALL_GRAPH if quick else WIDE_GRAPH
    counts = WEIGHTS_MICROBATCHES[:1] if quick else WEIGHTS_MICROBATCHES
    names = {
        (count, schedule): f"{schedule} against 1F1B, GCN on pp2, {count} chunks: seconds a step"
        for count in counts
        for schedule in ("zero-bubble", "zbv")
    }
    if cpus < 2:
        for what in names.values():
            yield not_measured(what, None, f"{cpus} CPU, 2 ranks")
        return
    changes = {"model": WIDE, "data": graph, "chunks": "contiguous", "batch_size": None}
    changes["train_steps"] = WARMUP + (2 if quick else 12)
    walls: dict[tuple[int, str], list[float]] = {}
    for _ in range(1 if quick else 4):
        for count, schedule in itertools.product(counts, ("zero-bubble", "zbv", "1f1b")):
            run = launcher.run("pp2", count, schedule=schedule, **changes)
            walls.setdefault((count, schedule), []).append(run.step_s)
    for (count, schedule), what in names.items():
        yield Row(what, paired(walls[count, schedule], walls[count, "1f1b"]), None)


def _in_turn(
    launcher: Launcher, pipelines: Sequence[_TwoStages], *, quick: bool
) -> tuple[list[float], dict[_TwoStages, list[float]]]:
    """Seconds a step of the sequential run, and of each pipeline, turn by turn."""
    # Short turns: what the machine does besides changes by the minute.
    batches = _batches(quick, 20, 6)
    alone: list[float] = []
    walls: dict[_TwoStages, list[float]] = {one: [] for one in pipelines}
    for _ in range(1 if quick else 4):
        alone.append(launcher.run("seq", 1, **batches).step_s)
        for one, mine in walls.items():
            run = launcher.run("pp2", one.microbatches, **batches, **one.changes)
            mine.append(run.step_s)
    return alone, walls


def _replicas(launcher: Launcher, cpus: int, *, quick: bool) -> Iterator[Row]:
    """Weak scaling, and what the machine takes when two strangers compute at once."""
    what = "dp2 weak scaling, ViG: seconds a step, one process and two replicas"
    at_once = "Two separate processes at once, ViG: seconds a step, alone and in company"
    added = "dp2 against two separate processes at once, ViG: seconds a step"
    within = "dp2 efficiency, ViG: seconds a step, the slower replica's own and real"
    if cpus < 2:
        for name, goal in ((what, 0.98), (at_once, None), (added, None), (within, None)):
            yield not_measured(name, goal, f"{cpus} CPU, 2 ranks")
        return
    # Short turns: what the machine does besides changes by the minute.
    batches = _batches(quick, 20, 6)
    alone, company, replicas = [], [], []
    walls, ideals = [], []
    for _ in range(1 if quick else 5):
        alone.append(launcher.run("seq", 1, **batches).step_s)
        run = launcher.run("dp2", 1, **batches)
        replicas.append(run.step_s)
        walls += run.walls
        ideals += run.ideals
        pair = [launcher.start("seq", 1, **batches, seed=seed) for seed in (0, 1)]
        company.append(max(run.step_s for run in _finish(pair)))
    yield Row(what, paired(replicas, alone), 0.98)
    yield Row(at_once, paired(company, alone), None)
    yield Row(added, paired(replicas, company), None)
    yield Row(within, paired(walls, ideals), None)


def _finish(running: list[Any]) -> list[Measured]:
    try:
        return [run.finish() for run in running]
    finally:
        for run in running:
            run.end()


def _schedules(launcher: Launcher, cpus: int, *, quick: bool) -> Iterator[Row]:
    """1F1B holds at most as many micro-batches as there are stages to come; GPipe holds all."""
    yield _as_fast(launcher, cpus, quick=quick)
    count, images = 8, 16 if quick else 64
    changes = {
        "model": KEEPS_MUCH,
        "data": SMALL_IMAGES,
        "batch_size": images,
        "train_steps": WARMUP + (1 if quick else 3),
        "engine": "native",
    }
    runs: dict[str, list[Measured]] = {"1f1b": [], "gpipe": []}
    for _ in range(1 if quick else 2):
        for schedule, done in runs.items():
            done.append(launcher.run("pp4", count, schedule=schedule, **changes))
    about = f"PyG's ViG on pp4, {count} micro-batches"
    for stage in range(4):
        peaks = [[run.peak_mib(stage) for run in runs[name]] for name in ("1f1b", "gpipe")]
        yield Row(f"1F1B against GPipe, {about}: peak MiB of stage {stage}", paired(*peaks), 1.1)


def _as_fast(launcher: Launcher, cpus: int, *, quick: bool) -> Row:
    """1F1B and GPipe where every rank has a CPU of its own."""
    layout = "pp4" if cpus >= 4 else "pp2"
    what = f"1F1B against GPipe, ViG on {layout}, 10 micro-batches: seconds a step"
    if cpus < 2:
        return not_measured(what, 0.97, f"{cpus} CPU, 2 ranks")
    walls: dict[str, list[float]] = {"1f1b": [], "gpipe": []}
    for _ in range(1 if quick else 4):
        for schedule in walls:
            run = launcher.run(layout, 10, schedule=schedule, **_batches(quick, 20, 8))
            walls[schedule] += run.walls
    return Row(what, paired(walls["1f1b"], walls["gpipe"]), 0.97)


def _cuts(launcher: Launcher, cpus: int, *, quick: bool) -> Iterator[Row]:
    what = "Cut by profile against equal counts, ViG of 4 blocks and a wide readout on pp2: "
    what += "seconds a step"
    if cpus < 2:
        yield not_measured(what, 1.1, f"{cpus} CPU, 2 ranks")
        return
    changes = {"model": UNEQUAL, "data": SMALL_IMAGES, "batch_size": 60, "engine": "native"}
    changes["train_steps"] = WARMUP + (2 if quick else 10)
    walls: dict[str, list[float]] = {"profile": [], "equal": []}
    for _ in range(1 if quick else 2):
        walls["profile"] += launcher.run("pp2", 10, balance="profile", **changes).walls
        walls["equal"] += launcher.run("pp2", 10, balance=EQUAL_COUNTS, **changes).walls
    yield Row(what, paired(walls["profile"], walls["equal"]), 1.1)


def _start_up(launcher: Launcher, *, quick: bool) -> Iterator[Row]:
    """Seen from outside, and as the run itself recorded it; four ranks on two CPUs."""
    changes = {"model": SMALL, "data": SMALL_IMAGES, "batch_size": 8, "train_steps": WARMUP + 1}
    runs = [launcher.run("pp4", 2, cpus=2, **changes) for _ in range(1 if quick else 3)]
    recorded = [run.result.provenance["startup_s"]["total"] for run in runs]
    what = "Start of 4 ranks on 2 CPUs, seconds"
    first = [run.first_step_s for run in runs]
    yield Row(f"{what} to the first step; limit 6", against_limit(first, START_LIMIT_S), 1.0)
    yield Row(f"{what}: recorded by the run, and seen from outside", paired(recorded, first), None)


def _batches(quick: bool, small: int, steps: int) -> dict[str, int]:
    """Images and training steps of a run."""
    if quick:
        return {"batch_size": small, "train_steps": WARMUP + 3}
    return {"batch_size": 100, "train_steps": WARMUP + steps}
