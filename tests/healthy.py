"""`python -m tests.healthy`: healthy cells of all kinds on real ranks; none may be accused.

Cells are drawn at random from models, layouts, schedules, engines, what is computed again, ways to
cut or sample a graph, small graphs, links, BatchNorm modes, precisions, optimizers, buckets of
gradients and odd sizes, and make one run folder, of which a report is written. With `--pauses` each
rank sleeps now and then anywhere in gnnhpc, or computes, which no check may take for a mistake.
Prints every cell that is not done and valid and why each flag was raised, and how many cells the
report flags; flags that the setting itself earns (chunks that lose edges, more ranks than
processors) are counted apart from those that an idle machine should not raise. Exits with 1 if any
cell is invalid.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gnnhpc.core.errors import InputError
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut
from tests.tools.cells import manifest_of, run
from tests.tools.pauses import Pauses

OF_SETTING = ("edges-lost", "oversubscribed")
"""Flags that are true of a setting on this machine before it runs."""
LAYOUTS = ("seq", "seq", "pp2", "pp2", "pp3", "pp4", "dp2", "dp3", "dp2-pp2", "dp2-pp3")


def draw(numbers: random.Random) -> dict[str, Any]:
    """One experiment's settings, which may not fit together."""
    common = {
        "layout": numbers.choice(LAYOUTS),
        "microbatches": numbers.randint(1, 6),
        "schedule": numbers.choice(["gpipe", "1f1b"]),
        "engine": numbers.choice(["native", "native", "pipelining", "torchgpipe"]),
        "activation_checkpointing": numbers.choice(["never", "never", "except_last", "always"]),
        "balance": numbers.choice(["cost", "cost", "profile", "time"]),
        "dtype": numbers.choice(["float32", "float32", "float32", "float64"]),
        "optimizer": {
            "name": numbers.choice(["adam", "adam", "sgd"]),
            "lr": numbers.choice([1e-3, 5e-3, 5e-2]),
            "weight_decay": numbers.choice([0.0, 5e-4]),
        },
        "train_steps": numbers.randint(1, 12),
        "test_steps": numbers.randint(0, 2),
        "test_every": numbers.choice([None, 2, 3]),
        "warmup_steps": numbers.randint(0, 2),
        "seed": numbers.randint(0, 10**6),
        "spans": numbers.random() < 0.3,
        "save_every": numbers.choice([None, None, 2]),
        "bucket_mib": numbers.choice([None, None, 1e-4]),
    }
    kind = numbers.choice(["images"] * 4 + ["graph"] * 3 + ["sampled"] * 3 + ["graphs"])
    if kind == "images":
        return common | images(numbers, common)
    of_kind = {"graph": graph, "sampled": sampled, "graphs": graphs}[kind]
    return common | of_kind(numbers)


def images(numbers: random.Random, common: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {
            "name": "vig",
            "blocks": numbers.randint(1, 4),
            "grapher_width": numbers.choice([3, 8, 17]),
            "ffn_width": numbers.choice([5, 16]),
            "readout_width": numbers.choice([7, 16]),
            "implementation": numbers.choice(["fused", "fused", "fused", "reference"]),
        },
        "data": {
            "name": "synthetic-cifar10",
            "image_size": numbers.choice([4, 5, 8, 13]),
            "train": numbers.randint(60, 120),
            "test": numbers.randint(60, 90),
        },
        "batch_size": common["microbatches"] * numbers.randint(1, 4),
        "batchnorm": numbers.choice(["micro", "deferred"]),
    }


OTHER_SAMPLERS = [
    name for name, module in (("dgl", "dgl"), ("pyg", "torch_sparse")) if find_spec(module)
]
OF_OTHERS = {"batch_size": 6, "microbatches": 1}
GRAPH_MODELS = ("gat", "gat", "gatv2", "gcn", "sage", "gin", "graphconv", "resgcn", "gcnii")


def graph(numbers: random.Random) -> dict[str, Any]:
    name = numbers.choice(GRAPH_MODELS)
    model: dict[str, Any] = {
        "name": name,
        "layers": numbers.randint(2, 4),
        "hidden": numbers.choice([2, 5, 8]),
        "dropout": numbers.choice([0.0, 0.3, 0.6]),
        "implementation": numbers.choice(["fused", "fused", "fused", "pyg"]),
    }
    if name in ("gat", "gatv2"):
        model["heads"] = numbers.choice([1, 3, 8])
    if name == "sage":
        model["aggregator"] = numbers.choice(["mean", "max", "pool"])
    return {
        "model": model,
        "data": {
            "name": "synthetic-citation",
            "nodes": numbers.randint(120, 400),
            "edges": numbers.randint(400, 1500),
            "features": numbers.choice([16, 33, 100]),
        },
        "chunks": numbers.choice(["contiguous", "clustered", "halo", "halo"]),
        "rebuild": numbers.choice(["once", "once", "layer"]),
    }


def sampled(numbers: random.Random) -> dict[str, Any]:
    """Mini-batches of nodes or links, with neighbours drawn by ours, PyG or DGL."""
    whole = graph(numbers)
    model = {**whole["model"], "name": numbers.choice(["sage", "gat", "gatv2"])}
    if model["name"] != "sage":
        model.pop("aggregator", None)
        model["heads"] = numbers.choice([1, 3])
    edges = numbers.randint(1000, 2500)
    sampler = numbers.choice(["ours", "ours", *OTHER_SAMPLERS])
    once = sampler == "pyg" or (sampler == "ours" and numbers.random() < 0.3)
    fanout = numbers.randint(2, 5)
    links = sampler == "ours" and numbers.random() < 0.3
    return {
        "model": model,
        "data": {**whole["data"], "edges": edges},
        # Theirs need a node for each micro-batch of a last step, of 35 nodes less whole steps.
        **({"batch_size": numbers.randint(6, 12)} if sampler == "ours" else OF_OTHERS),
        "sampling": {
            "fanouts": [fanout if once else numbers.randint(2, 5) for _ in range(model["layers"])],
            "sampler": sampler,
            "semantics": "once" if once else "resample",
            "workers": numbers.choice([0, 1, 1, 2]),
            "replace": numbers.random() < 0.3,
            "inductive": not links and numbers.random() < 0.3,
            "evaluation": "sampled"
            if sampler == "ours" and not links and numbers.random() < 0.3
            else "whole",
        },
    } | ({"task": {"name": "links", "embedding": numbers.choice([4, 8])}} if links else {})


def graphs(numbers: random.Random) -> dict[str, Any]:
    """Mini-batches of small graphs to classify."""
    return {
        "model": {
            "name": "gin",
            "layers": numbers.randint(2, 4),
            "hidden": numbers.choice([5, 8, 16]),
            "implementation": numbers.choice(["fused", "fused", "pyg"]),
        },
        "data": {
            "name": "synthetic-graphs",
            "graphs": numbers.randint(80, 120),
            "nodes": numbers.randint(5, 12),
        },
        "batch_size": numbers.randint(6, 20),
        "batchnorm": numbers.choice(["micro", "deferred"]),
    }


def experiments(seed: int) -> Iterator[Experiment]:
    """Those that are drawn and fit together, without end."""
    numbers = random.Random(seed)
    while True:
        try:
            experiment = Experiment.model_validate(draw(numbers))
            cut(experiment)
        except (ValidationError, InputError):
            continue
        yield experiment


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.healthy", description=__doc__)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="leave out those before this one")
    parser.add_argument("--out", type=Path, help="keep the run folder and its report here")
    parser.add_argument(
        "--pauses",
        choices=("sleep", "compute"),
        nargs="?",
        const="sleep",
        help="pause ranks anywhere, asleep (the default) or computing",
    )
    given = parser.parse_args()
    computes = given.pauses == "compute"
    pauses = Pauses(seed=given.seed, computes=computes) if given.pauses else None
    with tempfile.TemporaryDirectory(prefix="gnnhpc-healthy-") as folder:
        root = given.out or Path(folder) / "healthy"
        return measure(root, given.cells, given.seed, given.first, pauses)


def measure(root: Path, cells: int, seed: int, first: int, pauses: Pauses | None) -> int:
    """Run the drawn cells in one run folder, report it; 1 if any cell is invalid, else 0."""
    drawn = itertools.islice(experiments(seed), cells)
    manifest = manifest_of(root, *itertools.islice(drawn, first, None))
    for number, cell in enumerate(manifest, start=first + 1):
        ran = run(root, cell, plant=pauses)
        said = said_of(ran.attempt.result, ran.statuses)
        print(f"{number}/{cells} {cell.id}: {'; '.join(said) or 'ok'}", flush=True)
    return reported(root)


def reported(root: Path) -> int:
    """Write the report and print what it makes of the cells."""
    from analysis.report.report_folder import write_report_folder

    run, _, folder = write_report_folder([root], None, "seq", apart=False)
    invalid = int((~run.cells["valid"].astype(bool)).sum())
    raised = run.checks.drop_duplicates(["cell", "name"])
    by_chance = raised[~raised["name"].isin(OF_SETTING)]["cell"].nunique()
    total = len(run.cells)
    print(f"{total} healthy cells: {invalid} invalid")
    print(f"flagged, but for {' and '.join(OF_SETTING)}: {by_chance} ({by_chance / total:.1%})")
    for name, count in raised["name"].value_counts().items():
        print(f"  {name}: {count}")
    print(f"report: {folder / 'report.html'}")
    return 1 if invalid else 0


def said_of(path: Path, statuses: list[int | None]) -> list[str]:
    """What a cell's result complains of; how it ended, where it has none."""
    from gnnhpc.records.schema import Result

    try:
        result = Result.read(path)
    except (OSError, InputError) as error:
        return [f"invalid no result: ranks ended with {statuses} ({error})"]
    said = [
        f"{check.verdict} {check.name}: {check.detail}"
        for check in result.audit
        if check.verdict in ("invalid", "suspect")
    ]
    if result.failure is not None:
        said.append(f"invalid failure: {result.failure.error}")
    return sorted(said)


if __name__ == "__main__":
    sys.exit(main())
