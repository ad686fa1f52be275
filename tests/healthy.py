"""`python -m tests.healthy`: 500 healthy cells on real ranks, none of which may be called invalid.

Cells are drawn from models, layouts, schedules, engines, ways to cut or sample a graph, tasks,
precisions, recomputation and odd sizes. Some come with their sequential equivalent, with which the
report compares them. All are cells of one run folder. Flags that a setting earns on this machine
(chunks that lose edges, more ranks than processors) are counted apart from all others, of which at
most one cell in a hundred may have one.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from analysis.load.run_data import load_run
from gnnhpc.core.errors import InputError
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import FLAGGED
from tests.tools.cells import Ran, in_one_process, manifest_of, run

OF_SETTING = ("edges-lost", "oversubscribed")
"""Flags that are true of a setting on this machine before it runs."""
MOST_FLAGGED = 0.01
"""The share of cells that may have any other flag."""
LAYOUTS = ("seq", "seq", "pp2", "pp2", "pp3", "pp4", "dp2", "dp3", "dp2-pp2", "dp2-pp3")
SCHEDULES = ("gpipe", "gpipe", "1f1b", "interleaved", "zero-bubble", "zbv")
LIBRARIES = {"dgl": "dgl", "pyg": "torch_sparse"}
SAMPLERS = ["ours", "ours", *(name for name, module in LIBRARIES.items() if find_spec(module))]
GRAPH_MODELS = ("gat", "gat", "gatv2", "gcn", "sage", "gin", "graphconv", "resgcn", "gcnii")


class Drawn:
    """Draws settings, which may not fit together; none diverges in plain training."""

    def __init__(self, seed: int) -> None:
        self.numbers = random.Random(seed)
        self.one_of, self.between = self.numbers.choice, self.numbers.randint

    def chance(self, share: float) -> bool:
        return self.numbers.random() < share

    def cell(self) -> dict[str, Any]:
        kinds = [self.images] * 4 + [self.graph] * 3 + [self.sampled] * 3 + [self.graphs]
        common = self.common()
        return common | self.one_of(kinds)(common["microbatches"])

    def common(self) -> dict[str, Any]:
        schedule = self.one_of(SCHEDULES)
        return {
            "layout": self.one_of(LAYOUTS),
            "microbatches": self.between(1, 6),
            "schedule": schedule,
            **({"virtual_stages": 2} if schedule == "interleaved" else {}),
            "engine": self.one_of(["native", "native", "pipelining", "torchgpipe"]),
            "activation_checkpointing": self.one_of(["never", "never", "except_last", "always"]),
            "balance": self.one_of(["cost", "cost", "profile"]),
            "dtype": self.one_of(["float32", "float32", "float32", "float64"]),
            "optimizer": self.optimizer([1e-3, 1e-2]),
            "train_steps": self.between(1, 24),
            "test_steps": self.between(0, 2),
            "test_every": self.one_of([None, 2, 3]),
            "warmup_steps": self.between(0, 2),
            "seed": self.between(0, 10**6),
            "spans": self.chance(0.3),
            "save_every": self.one_of([None, None, 2]),
            "bucket_mib": self.one_of([None, None, 1e-4]),
        }

    def optimizer(self, sgd: list[float]) -> dict[str, Any]:
        """The optimizer; `sgd` are the learning rates with which training does not diverge."""
        adam = self.chance(0.7)
        rates, decay = [1e-3, 5e-3] if adam else sgd, self.one_of([0.0, 5e-4])
        return {"name": "adam" if adam else "sgd", "lr": self.one_of(rates), "weight_decay": decay}

    def images(self, microbatches: int) -> dict[str, Any]:
        return {
            "model": {
                "name": "vig",
                "blocks": self.between(1, 4),
                "grapher_width": self.one_of([8, 17]),
                "ffn_width": self.one_of([8, 16]),
                "readout_width": self.one_of([8, 16]),
                "implementation": self.one_of(["fused", "fused", "fused", "pyg"]),
            },
            "data": {
                "name": "synthetic-cifar10",
                "image_size": self.one_of([4, 5, 8, 13]),
                "train": self.between(60, 120),
                "test": self.between(60, 90),
            },
            "batch_size": microbatches * self.between(1, 4),
            "optimizer": self.optimizer([1e-5, 1e-4]),
            "batchnorm": self.one_of(["micro", "deferred"]),
        }

    def graph(self, _: int) -> dict[str, Any]:
        name = self.one_of(GRAPH_MODELS)
        model = {
            "name": name,
            "layers": self.between(2, 4),
            "hidden": self.one_of([4, 5, 8]),
            "dropout": self.one_of([0.0, 0.3, 0.6]),
            "implementation": self.one_of(["fused", "fused", "fused", "pyg", "dgl"]),
        }
        if name in ("gat", "gatv2"):
            model["heads"] = self.one_of([1, 3, 8])
        if name == "sage":
            model["aggregator"] = self.one_of(["mean", "max", "pool"])
        return {
            "model": model,
            "data": {
                "name": "synthetic-citation",
                "nodes": self.between(120, 400),
                "edges": self.between(400, 1500),
                "features": self.one_of([16, 33, 100]),
            },
            "chunks": self.one_of(["contiguous", "clustered", "halo", "halo"]),
            "rebuild": self.one_of(["once", "once", "layer"]),
        }

    def sampled(self, _: int) -> dict[str, Any]:
        """Mini-batches of nodes or links; a library's need a node for each micro-batch."""
        whole = self.graph(0)
        model = {**whole["model"], "name": self.one_of(["sage", "gat", "gatv2"])}
        model.pop("aggregator", None)
        model |= {} if model["name"] == "sage" else {"heads": self.one_of([1, 3])}
        sampler = self.one_of(SAMPLERS)
        ours = sampler == "ours"
        once = sampler == "pyg" or (ours and self.chance(0.3))
        links = ours and self.chance(0.3)
        fanouts = [self.between(2, 5) for _ in range(model["layers"])]
        return {
            "model": model,
            "data": {**whole["data"], "edges": self.between(1000, 2500)},
            **(
                {"batch_size": self.between(6, 12)}
                if ours
                else {"batch_size": 6, "microbatches": 1}
            ),
            "sampling": {
                "fanouts": fanouts[:1] * len(fanouts) if once else fanouts,
                "sampler": sampler,
                "semantics": "once" if once else "resample",
                "workers": self.one_of([0, 1, 1, 2]),
                "replace": self.chance(0.3),
                "inductive": not links and self.chance(0.3),
                "evaluation": "sampled" if ours and not links and self.chance(0.3) else "whole",
            },
            **({"task": {"name": "links", "embedding": self.one_of([4, 8])}} if links else {}),
        }

    def graphs(self, _: int) -> dict[str, Any]:
        return {
            "model": {
                "name": "gin",
                "layers": self.between(2, 4),
                "hidden": self.one_of([5, 8, 16]),
                "implementation": self.one_of(["fused", "fused", "pyg", "dgl"]),
            },
            "data": {
                "name": "synthetic-graphs",
                "graphs": self.between(80, 120),
                "nodes": self.between(5, 12),
            },
            "batch_size": self.between(6, 20),
            "batchnorm": self.one_of(["micro", "deferred"]),
        }


def experiments(seed: int) -> Iterator[Experiment]:
    """Those that are drawn and fit together, some with their sequential equivalent, without end."""
    drawn = Drawn(seed)
    while True:
        settings = drawn.cell()
        try:
            experiment = Experiment.model_validate(settings)
            cut(experiment)
        except (ValidationError, InputError):
            continue
        yield experiment
        if experiment.layout.world_size > 1 and drawn.chance(0.2):
            alone = {
                "schedule": "gpipe",
                "virtual_stages": 1,
                "engine": "native",
                "balance": "cost",
            }
            alone |= {"activation_checkpointing": "never", "bucket_mib": None}
            yield in_one_process(experiment, **alone)


def main() -> int:
    """Returns 1 where a cell is invalid, or more than one in a hundred flagged by chance."""
    parser = argparse.ArgumentParser(prog="python -m tests.healthy", description=__doc__)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="keep the run folder here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gnnhpc-healthy-") as folder:
        root = options.out or Path(folder) / "healthy"
        drawn = experiments(options.seed)
        began_s = time.monotonic()
        manifest = manifest_of(root, *(next(drawn) for _ in range(options.cells)))
        for number, cell in enumerate(manifest, start=1):
            lines = complaints(run(root, cell)) or ["ok"]
            spent_s = time.monotonic() - began_s
            said = f"{spent_s:.0f} s {cell.id}: {'; '.join(lines)}"
            print(f"{number}/{options.cells} {said}", flush=True)
        return report(root)


def complaints(ran: Ran) -> list[str]:
    """What a cell's result finds wrong; how its ranks ended where there is none."""
    try:
        result = Result.read(ran.attempt.result)
    except (OSError, InputError) as error:
        return [f"invalid no result: ranks ended with {ran.statuses} ({error}) {ran.err}"]
    found = [f"{c.verdict} {c.name}: {c.detail}" for c in result.audit if c.verdict in FLAGGED]
    if result.failure is not None:
        found.append(f"invalid failure: {result.failure.error}")
    return sorted(found)


def report(root: Path) -> int:
    """Print a table of the flags that loading the run folder gives; returns the exit status."""
    run = load_run(root)
    total = len(run.cells)
    invalid = int((~run.cells["valid"].astype(bool)).sum())
    raised = run.checks[run.checks["verdict"].isin(FLAGGED)].drop_duplicates(["cell", "name"])
    by_chance = raised[~raised["name"].isin(OF_SETTING)]["cell"].nunique()
    print(f"{total} healthy cells: {invalid} invalid")
    compared = int((run.cells["compared_steps"] > 0).sum())
    print(f"{compared} compared with their sequential equivalent")
    print(f"flagged, but for {' and '.join(OF_SETTING)}: {by_chance} ({by_chance / total:.1%})")
    for (name, verdict), count in raised[["name", "verdict"]].value_counts().items():
        print(f"  {name:<24} {verdict:<14} {count}")
    return int(invalid > 0 or by_chance > MOST_FLAGGED * total)


if __name__ == "__main__":
    sys.exit(main())
