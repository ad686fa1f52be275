"""Matches of several processes: pipelines, replicas, schedules, and the suite's commands."""

from __future__ import annotations

from typing import Any

from benchmarks.rows_one_process import PUBMED, SMALL, Settings, gat_cell, vig_cell
from benchmarks.table import Comparison, Match
from benchmarks.turns import Contestant
from gnnhpc.core.schedules import bound

SMALL_IMAGES = {"name": "synthetic-cifar10", "train": 64, "test": 64, "image_size": 16}
WIDE: Settings = {
    "model": {"name": "gcn", "layers": 4, "hidden": 256},
    "data": {"name": "reddit-shaped", "nodes": 40_000, "edges": 400_000, "features": 256},
    "chunks": "contiguous",
}
"""Products take most of the time of wide layers, and half of a backward's is for weights."""


TEN_THOUSAND_CELLS = {
    "name": "many",
    "grids": [
        {
            "models": ["vig"],
            "data": ["synthetic-cifar10"],
            "layouts": ["pp2", "pp4", "dp2", "dp2-pp2"],
            "microbatches": [1, 2, 4, 5, 10],
            "batch_size": 100,
            "repeats": 500,
        }
    ],
}


def cell(settings: Settings, quick: bool, steps: int = 6, **arguments: Any) -> Contestant:
    """A run of few steps: what else the machine does changes by the minute."""
    given = {"steps": 2 if quick else steps, **settings, **arguments}
    return Contestant("benchmarks.contestants.cells:cell", given)


def _match(entries: dict[str, Contestant], *comparisons: Comparison, rounds: int = 6) -> Match:
    return Match(entries, comparisons, rounds=rounds, warmup=0, threads=1, cpus=2)


def pipelines(*, quick: bool) -> list[Match]:
    """Two stages of ViG: of the bound against the best sequential run, and their efficiency.

    The best sequential run has one micro-batch. Efficiency is the schedule's ideal step of the
    stages' own seconds, over the real step.
    """
    images, counts = (20, (5,)) if quick else (100, (5, 10, 20))
    entries = {"seq": cell(vig_cell(images), quick)}
    comparisons = []
    for count in counts:
        for schedule, stages in (("gpipe", 1), ("1f1b", 1), ("interleaved", 2)):
            if schedule == "interleaved" and count % 2:
                continue
            changes = {"virtual_stages": stages} if stages > 1 else {}
            settings = vig_cell(
                *(images,), layout="pp2", microbatches=count, schedule=schedule, **changes
            )
            name = f"{schedule} {count}"
            entries[name] = cell(settings, quick)
            most = bound(1, 2, count, stages)
            what = f"pp2 of ViG, {count} micro-batches, {schedule}"
            comparisons += [
                Comparison(
                    f"{what}: seconds a step, and at the bound {most:.3f} of the best sequential",
                    *(name, "seq", None if stages > 1 else 0.95),
                    factor=1 / most,
                ),
                Comparison(
                    f"{what}: efficiency, seconds a step, real and ideal",
                    *(name, name, None if stages > 1 else 0.97),
                    reference_of="ideal_s",
                ),
            ]
    return [_match(entries, *comparisons)]


def schedules(*, quick: bool) -> list[Match]:
    """Schedules against one another, cuts by a profile, and the other engines."""
    graph = WIDE["data"] | ({"nodes": 2_000, "edges": 20_000} if quick else {})
    wide = WIDE | {"data": graph, "layout": "pp2", "microbatches": 8}
    names = ("1f1b", "zero-bubble", "zbv")
    entries = {name: cell(wide | {"schedule": name}, quick, 12) for name in names}
    matches = [
        _match(
            entries,
            *(
                Comparison(f"{name} and 1F1B, GCN on pp2, 8 chunks: seconds a step", name, "1f1b")
                for name in names[1:]
            ),
        )
    ]
    # PyG's form keeps every hidden activation, so a schedule's held micro-batches show in memory.
    held = vig_cell(16 if quick else 64, layout="pp4", microbatches=8) | {
        "model": {"name": "vig", "implementation": "pyg"},
        "data": SMALL_IMAGES,
    }
    peaks = [
        Comparison(
            f"1F1B and GPipe, PyG's ViG on pp4, 8 micro-batches: peak MiB of stage {stage}",
            *("1f1b", "gpipe", 1.1),
            of=f"peak_mib_{stage}",
        )
        for stage in range(4)
    ]
    entries = {name: cell(held | {"schedule": name}, quick, 3) for name in ("1f1b", "gpipe")}
    matches.append(_match(entries, *peaks, rounds=2))
    # Four blocks of small layers, and a readout that weighs more than all of them.
    unequal = vig_cell(60, layout="pp2", microbatches=10) | {
        "model": {"name": "vig", "blocks": 4, "readout_width": 131_072},
        "data": SMALL_IMAGES,
    }
    entries = {
        "profile": cell(unequal | {"balance": "profile"}, quick, 10),
        "equal": cell(unequal | {"balance": (5, 4)}, quick, 10),
    }
    what = "cut by a profile and in equal counts, ViG with a wide readout on pp2: seconds a step"
    matches.append(_match(entries, Comparison(what, "profile", "equal", 1.1)))
    sizes = SMALL if quick else PUBMED
    for name, settings in {
        "GAT": gat_cell(sizes, microbatches=4, chunks="clustered"),
        "ViG": vig_cell(20, microbatches=4),
    }.items():
        entries = {
            "seq": cell(settings, quick, 12),
            "torchgpipe": cell(settings | {"layout": "pp2", "engine": "torchgpipe"}, quick, 12),
        }
        what = f"{name}, 4 micro-batches in one process, and torchgpipe's: seconds a step"
        matches.append(_match(entries, Comparison(what, "seq", "torchgpipe", 0.98)))
    return matches


def replicas(*, quick: bool) -> list[Match]:
    """Weak scaling of two replicas, and what all-reduce costs them, with buckets and without."""
    vig = vig_cell(20 if quick else 100)
    entries = {
        "seq": cell(vig, quick),
        "dp2": cell(vig | {"layout": "dp2"}, quick),
        "at once": cell(vig, quick, copies=2),
    }
    what = "ViG, seconds a step"
    matches = [
        _match(
            entries,
            Comparison(f"{what}: dp2, and one process", "dp2", "seq", 0.98),
            Comparison(f"{what}: two separate processes at once, and one", "at once", "seq"),
            Comparison(f"{what}: dp2, and two separate processes at once", "dp2", "at once"),
        )
    ]
    models = {"ViG": vig, "GAT": gat_cell(SMALL if quick else PUBMED, chunks="contiguous")}
    for name, settings in models.items():
        both = settings | {"layout": "dp2"}
        entries = {
            "at the end": cell(both, quick, 10),
            "buckets": cell(both | {"bucket_mib": 0.5}, quick, 10),
        }
        what = f"{name} on dp2, all-reduce in buckets of 0.5 MiB, and at the end"
        matches.append(
            _match(
                entries,
                Comparison(f"{what}: seconds a step", "buckets", "at the end"),
                Comparison(f"{what}: its seconds", "buckets", "at the end", of="allreduce_s"),
            )
        )
    return matches


def suite(*, quick: bool) -> list[Match]:
    """Starting ranks and waiting for data; submitting, asking and reporting many cells."""
    small = vig_cell(8, layout="pp4", microbatches=2)
    small |= {"model": {"name": "vig", "blocks": 2}, "data": SMALL_IMAGES}
    start = "start of 4 ranks on 2 CPUs: seconds until they train"
    data = "ViG, wait for data: seconds a step with it, and without; at most 1 %"
    matches = [
        Match(
            {"start": cell(small, quick, 1, cpus=2)},
            [Comparison(f"{start}; limit 6", "start", 6.0, 1.0, of="startup_s")],
            rounds=3,
            warmup=0,
        ),
        Match(
            {"seq": cell(vig_cell(20 if quick else 100), quick, 10)},
            [Comparison(data, "seq", "seq", 0.99, of="data_s", reference_of="seconds")],
            rounds=3,
            warmup=0,
        ),
    ]
    cells, reported = (500, 50) if quick else (10_000, 1_000)
    make = "tests.tools.make_run {folder}/run --cells"
    commands: dict[str, Settings] = {
        "jobs submit --dry-run of 10,000 cells": {
            "command": "jobs submit {folder}/sweep.yaml --dry-run --runs {folder}/runs",
            "sweep": TEN_THOUSAND_CELLS,
        },
        f"jobs status of {cells:,} cells": {
            "command": "jobs status {folder}/run",
            "prepare": f"{make} {cells} --steps 2 --layout seq",
        },
        f"analysis report of {reported:,} cells x 4 ranks x 120 steps": {
            "command": "analysis report {folder}/run",
            "prepare": f"{make} {reported} --steps 120 --layout pp4",
        },
    }
    for (what, given), limit in zip(commands.items(), (3.0, 2.0, 15.0), strict=True):
        matches.append(
            Match(
                {"command": Contestant("benchmarks.contestants.cells:command", given)},
                [
                    Comparison(f"{what}: seconds; limit {limit:g}", "command", limit, 1.0),
                    Comparison(f"{what}: peak MiB; limit 1024", "command", 1024.0, 1.0, "peak_mib"),
                ],
                rounds=3,
                warmup=0,
            )
        )
    return matches
