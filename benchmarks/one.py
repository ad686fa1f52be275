"""One process: ViG's and GAT's training steps against PyG's and DGL's, and the wait for data."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.isolated import call
from benchmarks.launch import Launcher
from benchmarks.ratios import against_limit, paired
from benchmarks.table import Parts, Row, not_measured

STEP_LIMIT_S = 12.0
MEMORY_LIMIT_MIB = 1024.0
WAIT_SHARE = 0.01


def parts(folder: Path, *, quick: bool, threads: int) -> Parts:
    return {
        "ViG": partial(_vig, quick=quick, threads=threads),
        "GAT": partial(_gat, quick=quick, threads=threads),
        "data": partial(_data_wait, folder, quick=quick),
    }


def _vig(*, quick: bool, threads: int) -> Iterator[Row]:
    """The reference needs tens of GiB at the fused batch, so it gets one that fits in cache-warm
    memory; its cost an image does not fall with more images."""
    fused, reference, rounds = (50, 2, 2) if quick else (1000, 10, 4)
    seconds = call(
        "benchmarks.vig_step:in_turns",
        fused=fused,
        reference=reference,
        rounds=rounds,
        threads=threads,
    )
    yield Row(
        f"ViG training step, 8 blocks, seconds an image: fused at {fused} images, "
        f"PyG at {reference}",
        paired(seconds["fused"], seconds["reference"]),
        20.0,
    )
    alone = call("benchmarks.vig_step:alone", images=fused, rounds=rounds, threads=threads)
    yield Row(
        f"ViG training step, {fused} images, seconds; limit {STEP_LIMIT_S:g}",
        against_limit(alone["seconds"], STEP_LIMIT_S),
        1.0,
    )
    yield Row(
        f"ViG training step, {fused} images, peak MiB; limit {MEMORY_LIMIT_MIB:g}",
        against_limit(alone["peak_mib"], MEMORY_LIMIT_MIB),
        1.0,
    )


def _gat(*, quick: bool, threads: int) -> Iterator[Row]:
    found = call("benchmarks.one_gat:in_turns", rounds=3 if quick else 15, threads=threads)
    seconds = found["seconds"]
    for goal in found["goals"]:
        what = f"{goal['what']}, 19,717 nodes, 88,648 edges, 500 features, seconds"
        if goal["reference"] in seconds:
            compared = paired(seconds[goal["ours"]], seconds[goal["reference"]])
            yield Row(what, compared, goal["at_least"])
        else:
            installed = importlib.util.find_spec(goal["reference"]) is not None
            why = "its import failed" if installed else "not installed"
            yield not_measured(what, goal["at_least"], f"{goal['reference']} {why}")


def _data_wait(folder: Path, *, quick: bool) -> Iterator[Row]:
    """Time from step to step without waiting for data, over that with it."""
    launcher = Launcher(folder)
    run = launcher.run("seq", 1, batch_size=20 if quick else 100, train_steps=5 if quick else 10)
    steps = run.steps(0)
    wall = [step["wall_s"] for step in steps]
    waited = [step["wall_s"] + step["data_s"] for step in steps]
    yield Row(
        f"Wait for data, ViG, seconds a step with it and without; at most {WAIT_SHARE:.0%}",
        paired(waited, wall),
        1.0 - WAIT_SHARE,
    )
