"""Matches of several processes: pipelines, replicas, schedules, and the suite's commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.rows_one_process import PUBMED, SMALL, Settings, gat_cell, vig_cell
from benchmarks.table import Comparison, Match
from benchmarks.turns import Contestant
from gnnhpc.core.schedules import bound

SMALL_IMAGES = {"name": "synthetic-cifar10", "train": 64, "test": 64, "image_size": 16}
TEN_THOUSAND_CELLS = {
    "models": ["vig"],
    "data": ["synthetic-cifar10"],
    "layouts": ["pp2", "pp4", "dp2", "dp2-pp2"],
    "microbatches": [1, 2, 4, 5, 10],
    "batch_size": 100,
    "repeats": 500,
}


def cell(settings: Settings, quick: bool, steps: int = 6, **others: Any) -> Contestant:
    """A run of few steps: what else the machine does changes by the minute."""
    arguments = {"steps": 2 if quick else steps, **settings, **others}
    return Contestant("benchmarks.contestants.cells:cell", arguments)


def _match(entries: dict[str, Contestant], *comparisons: Comparison, rounds: int = 6) -> Match:
    return Match(entries, comparisons, rounds=rounds, warmup=0, threads=1, cpus=2)


def pipelines(*, quick: bool) -> Iterator[Match]:
    """Two stages of ViG: of the bound against the best sequential run, and their efficiency.

    The best sequential run has one micro-batch. Efficiency is the schedule's ideal step of the
    stages' own seconds, over the real step.
    """
    images, counts = (20, (5,)) if quick else (100, (5, 10, 20))
    entries = {"seq": cell(vig_cell(images), quick)}
    comparisons = []
    for count in counts:
        for schedule in ("gpipe", "1f1b", *([] if count % 2 else ["interleaved"])):
            virtual = {"virtual_stages": 2} if schedule == "interleaved" else {}
            settings = {"layout": "pp2", "microbatches": count, "schedule": schedule, **virtual}
            name = f"{schedule} {count}"
            entries[name] = cell(vig_cell(images, **settings), quick)
            most = bound(1, 2, count, 2 if virtual else 1)
            what = f"pp2 of ViG, {count} micro-batches, {schedule}"
            comparisons += [
                Comparison(
                    f"{what}: seconds a step, and at the bound {most:.3f} of the best sequential",
                    *(name, "seq", None if virtual else 0.95),
                    factor=1 / most,
                ),
                Comparison(
                    f"{what}: efficiency, seconds a step, real and ideal",
                    *(name, name, None if virtual else 0.97),
                    reference_of="ideal_s",
                ),
            ]
    yield _match(entries, *comparisons)


def schedules(*, quick: bool) -> Iterator[Match]:
    """Schedules against one another, cuts by a profile, and the other engines."""
    sizes = {"nodes": 2_000, "edges": 20_000} if quick else {"nodes": 40_000, "edges": 400_000}
    # Products take most of the time of wide layers, and half of a backward's is for weights.
    wide = {
        "model": {"name": "gcn", "layers": 4, "hidden": 256},
        "data": {"name": "reddit-shaped", "features": 256, **sizes},
        "chunks": "contiguous",
        "layout": "pp2",
        "microbatches": 8,
    }
    names = ("1f1b", "zero-bubble", "zbv")
    yield _match(
        {name: cell(wide | {"schedule": name}, quick, 12) for name in names},
        *(
            Comparison(f"{name} and 1F1B, GCN on pp2, 8 chunks: seconds a step", name, "1f1b")
            for name in names[1:]
        ),
    )
    # PyG's form keeps every hidden activation, so a schedule's held micro-batches show in memory.
    model = {"name": "vig", "implementation": "pyg"}
    changes = {"layout": "pp4", "microbatches": 8, "model": model, "data": SMALL_IMAGES}
    held = vig_cell(16 if quick else 64, **changes)
    what = "1F1B and GPipe, PyG's ViG on pp4, 8 micro-batches: peak MiB of stage"
    yield _match(
        {name: cell(held | {"schedule": name}, quick, 3) for name in ("1f1b", "gpipe")},
        *(
            Comparison(f"{what} {stage}", "1f1b", "gpipe", 1.1, of=f"peak_mib_{stage}")
            for stage in range(4)
        ),
        rounds=2,
    )
    # Four blocks of small layers, and a readout that weighs more than all of them.
    model = {"name": "vig", "blocks": 4, "readout_width": 131_072}
    changes = {"layout": "pp2", "microbatches": 10, "model": model, "data": SMALL_IMAGES}
    cuts = {"profile": "profile", "equal": (5, 4)}
    what = "cut by a profile and in equal counts, ViG with a wide readout on pp2: seconds a step"
    yield _match(
        {n: cell(vig_cell(60, **changes, balance=cut), quick, 10) for n, cut in cuts.items()},
        Comparison(what, "profile", "equal", 1.1),
    )
    for name, settings in {
        "GAT": gat_cell(SMALL if quick else PUBMED, microbatches=4, chunks="clustered"),
        "ViG": vig_cell(20, microbatches=4),
    }.items():
        library = settings | {"layout": "pp2", "engine": "torchgpipe"}
        what = f"{name}, 4 micro-batches in one process, and torchgpipe's: seconds a step"
        yield _match(
            {"seq": cell(settings, quick, 12), "torchgpipe": cell(library, quick, 12)},
            Comparison(what, "seq", "torchgpipe", 0.98),
        )


def replicas(*, quick: bool) -> Iterator[Match]:
    """Weak scaling of two replicas, and what all-reduce costs them, with buckets and without."""
    vig = vig_cell(20 if quick else 100)
    what = "ViG, seconds a step"
    yield _match(
        {
            "seq": cell(vig, quick),
            "dp2": cell(vig | {"layout": "dp2"}, quick),
            "at once": cell(vig, quick, copies=2),
        },
        Comparison(f"{what}: dp2, and one process", "dp2", "seq", 0.98),
        Comparison(f"{what}: two separate processes at once, and one", "at once", "seq"),
        Comparison(f"{what}: dp2, and two separate processes at once", "dp2", "at once"),
    )
    gat = gat_cell(SMALL if quick else PUBMED, chunks="contiguous")
    for name, settings in {"ViG": vig, "GAT": gat}.items():
        both = settings | {"layout": "dp2"}
        what = f"{name} on dp2, all-reduce in buckets of 0.5 MiB, and at the end"
        yield _match(
            {
                "at the end": cell(both, quick, 10),
                "buckets": cell(both | {"bucket_mib": 0.5}, quick, 10),
            },
            Comparison(f"{what}: seconds a step", "buckets", "at the end"),
            Comparison(f"{what}: its seconds", "buckets", "at the end", of="allreduce_s"),
        )


def suite(*, quick: bool) -> Iterator[Match]:
    """Starting ranks and waiting for data; submitting, asking and reporting many cells."""
    model = {"name": "vig", "blocks": 2}
    small = vig_cell(8, layout="pp4", microbatches=2, model=model, data=SMALL_IMAGES)
    start = "start of 4 ranks on 2 CPUs: seconds until they train; limit 6"
    yield _alone(cell(small, quick, 1, cpus=2), Comparison(start, "it", 6.0, 1.0, of="startup_s"))
    data = "ViG, wait for data: seconds a step with it, and without; at most 1 %"
    yield _alone(
        cell(vig_cell(20 if quick else 100), quick, 10),
        Comparison(data, "it", "it", 0.99, of="data_s", reference_of="seconds"),
    )
    cells, reported = (500, 50) if quick else (10_000, 1_000)
    make = "tests.tools.make_run {folder}/run --cells"
    submit = "jobs submit {folder}/sweep.yaml --dry-run --runs {folder}/runs"
    yield _command("jobs submit --dry-run of 10,000 cells", 3.0, submit)
    prepare = f"{make} {cells} --steps 2 --layout seq"
    yield _command(f"jobs status of {cells:,} cells", 2.0, "jobs status {folder}/run", prepare)
    what = f"analysis report of {reported:,} cells x 4 ranks x 120 steps"
    prepare = f"{make} {reported} --steps 120 --layout pp4"
    yield _command(what, 15.0, "analysis report {folder}/run", prepare)


def _command(what: str, limit_s: float, command: str, prepare: str | None = None) -> Match:
    """Seconds and memory of a command, after one that prepares its folder."""
    sweep = {"name": "many", "grids": [TEN_THOUSAND_CELLS]}
    arguments = {"command": command, "prepare": prepare, "sweep": sweep}
    return _alone(
        Contestant("benchmarks.contestants.cells:command", arguments),
        Comparison(f"{what}: seconds; limit {limit_s:g}", "it", limit_s, 1.0),
        Comparison(f"{what}: peak MiB; limit 1024", "it", 1024.0, 1.0, "peak_mib"),
    )


def _alone(contestant: Contestant, *comparisons: Comparison) -> Match:
    return Match({"it": contestant}, comparisons, rounds=3, warmup=0)
