"""Write a run folder as workers would, without running anything: for tests and for timing reports.

python -m tests.tools.make_run OUT --cells 1000 --steps 120 --layout pp4
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from gnnhpc.core.provenance import PROVENANCE_VERSION
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.core.versioned_json import with_digest
from gnnhpc.data.data_settings import SyntheticCifar10
from gnnhpc.data.published_graphs import PublishedGraph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, assign_indices, write_manifest
from gnnhpc.models.gat import Gat
from gnnhpc.models.vig.model import Vig
from gnnhpc.records.rank_record_writer import FileDigest, RecordWriter
from gnnhpc.records.result_file import NOT_DIGESTED, Result, final_key
from gnnhpc.records.schema import Check, Failure, Header, Phase, Status
from tests.tools.made_steps import Machine, MadeSteps, quality

STARTED = "2026-03-01T09:00:00+00:00"
ENDED = "2026-03-01T09:10:00+00:00"
CODE = "0123456789abcdef"
VERSIONS = {"python": "3.11.7", "torch": "2.9.1"}


@dataclass(frozen=True)
class Story:
    """How one attempt goes; the default is that all goes well."""

    status: Status = "done"
    finished: bool = True
    """Whether result.json is written."""
    stop_at: int | None = None
    """Training steps recorded; none records all."""
    resumed_from: dict[str, int] | None = None
    audit: tuple[Check, ...] = ()
    cut_short: bool = False
    """Leave half a line at the end of each rank's file."""
    header: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the ranks' headers, such as host or code."""


def small_sweep(
    repeats: int = 2, train_steps: int = 12, test_steps: int = 4, **changes: Any
) -> list[Experiment]:
    """Both models in the four layouts, as a quick sweep of the suite would have them."""
    vig = {"model": Vig(), "data": SyntheticCifar10(image_size=16), "batch_size": 100}
    gat = {"model": Gat(), "data": PublishedGraph(name="cora"), "chunks": "halo"}
    experiments: list[Experiment] = []
    for repeat, layout in itertools.product(range(repeats), ("seq", "pp2", "pp4", "dp2-pp2")):
        common = {"layout": layout, "repeat": repeat} | changes
        common |= {"train_steps": train_steps, "test_steps": test_steps}
        images, chunks = ((1, 5, 10), (1,)) if layout == "seq" else ((5, 10), (2, 4))
        for model, counts in ((vig, images), (gat, chunks)):
            settings = [model | common | {"microbatches": count} for count in counts]
            experiments += map(Experiment.model_validate, settings)
    return experiments


def make_run(
    root: Path,
    experiments: Iterable[Experiment],
    *,
    stories: Mapping[str, Sequence[Story]] | None = None,
    machine: Machine | None = None,
    seed: int = 0,
) -> Path:
    """Write `root` as a finished run; `stories` gives some cells, by id, other attempts."""
    root.mkdir(parents=True)
    paths = RunPaths(root)
    cells = assign_indices(experiments)
    write_manifest(paths.manifest, cells)
    paths.sweep.write_text("name: made\n", encoding="utf-8")
    provenance = {
        "version": PROVENANCE_VERSION,
        "git_commit": "0" * 40,
        "host": "login1",
        "command": "python -m jobs submit",
        "cells": len(cells),
    }
    paths.provenance.write_text(json.dumps(provenance), encoding="utf-8")
    rng = np.random.default_rng(seed)
    for cell in cells:
        written: dict[int, dict[str, FileDigest]] = {}
        for each in (stories or {}).get(cell.id, (Story(),)):
            steps = cell.experiment.train_steps if each.stop_at is None else each.stop_at
            story = replace(each, stop_at=steps)
            attempt = paths.cell(cell.id).claim_attempt()
            made = MadeSteps(cell.experiment, (machine or Machine()).drawn(rng))
            written[attempt.number] = _write_records(attempt, cell, story, made, rng)
            if story.finished:
                files = dict(written[attempt.number])
                if story.resumed_from:
                    earlier = story.resumed_from["attempt"]
                    before = written[earlier].items()
                    files |= {f"../attempt-{earlier}/{name}": each for name, each in before}
                _result(attempt, cell, story, made, files).write(attempt.result)
    return root


def _write_records(
    attempt: AttemptPaths, cell: Cell, story: Story, made: MadeSteps, rng: np.random.Generator
) -> dict[str, FileDigest]:
    """The files of an attempt's ranks."""
    experiment, last = cell.experiment, story.stop_at
    assert last is not None
    first = story.resumed_from["step"] if story.resumed_from else 0
    whole = last == experiment.train_steps and story.status == "done"
    phases: list[tuple[Phase, int, int]] = [("train", first, last)]
    phases += [("test", 0, experiment.test_steps)] if whole else []
    headers = [_header(attempt, cell, made, rank, story) for rank in range(cell.world_size)]
    writers = [RecordWriter(attempt.records(each.rank), each) for each in headers]
    clock = 0.0
    for phase, begin, end in phases:
        for step in range(begin, end):
            seconds, records = made.step(phase, step, begin, clock, rng)
            clock += seconds
            for writer, of_rank in zip(writers, records, strict=True):
                writer.write(*of_rank)
    for writer in writers:
        writer.close()
        if story.cut_short:
            with writer.path.open("a") as stream:
                stream.write('{"phase": "train", "step": 99')
    return {name: each for writer in writers for name, each in writer.written.items()}


def _header(attempt: AttemptPaths, cell: Cell, made: MadeSteps, rank: int, story: Story) -> Header:
    layout = cell.experiment.layout
    stage = layout.stage_of(rank)
    layers = [layer for number in made.numbers(stage) for layer in made.parts[number]]
    header = Header(
        cell=cell.id,
        attempt=attempt.number,
        rank=rank,
        replica=layout.replica_of(rank),
        stage=stage,
        world_size=layout.world_size,
        host=_host(rank),
        code=CODE,
        versions=VERSIONS,
        pid=1000 + rank,
        cpu_model="Made CPU",
        cpus=1,
        threads=1,
        device="cpu",
        layers=[layer.name for layer in layers],
        parameters=sum(layer.parameters for layer in layers),
        started_at=STARTED,
        startup_s={"imports": 1.5, "rendezvous": 0.2},
    )
    return replace(header, **story.header)


def _host(rank: int) -> str:
    return f"node{rank % 2 + 1}"


def _result(
    attempt: AttemptPaths,
    cell: Cell,
    story: Story,
    made: MadeSteps,
    records: dict[str, FileDigest],
) -> Result:
    experiment, layout, train_steps = cell.experiment, cell.experiment.layout, story.stop_at or 0
    failure = None
    if story.status == "failed":
        failure = Failure(0, "node1", train_steps, "train", "RuntimeError: planted", ENDED)
    return Result(
        cell=cell.id,
        attempt=attempt.number,
        status=story.status,
        experiment=experiment.model_dump(mode="json"),
        layout={
            "name": str(layout),
            "replicas": layout.replicas,
            "stages": layout.stages,
            "world_size": layout.world_size,
            "balance": [len(part) for part in made.parts],
            "schedule": experiment.schedule,
            "virtual_stages": experiment.virtual_stages,
        },
        provenance={
            "git_commit": "0" * 40,
            "hosts": [_host(rank) for rank in range(layout.world_size)],
            "threads": 1,
            "code": CODE,
            "versions": VERSIONS,
            "slurm": {},
        },
        started_at=STARTED,
        ended_at=ENDED,
        train_steps=train_steps,
        test_steps=experiment.test_steps,
        final=_final(experiment, train_steps),
        graph=_graph(experiment) if experiment.data.facts().kind == "graph" else {},
        audit=[Check("samples", "ok", "each seen once"), *story.audit],
        validation={"seconds": 3.0, "attempt_s": 600.0},
        failure=failure,
        resumed_from=story.resumed_from,
        records=records,
    )


def _final(experiment: Experiment, train_steps: int) -> dict[str, float]:
    """Loss and metrics of the last step of each phase."""
    found: dict[str, float] = {}
    for phase, steps in (("train", train_steps), ("test", experiment.test_steps)):
        if steps:
            metrics, loss = quality(experiment, phase, steps - 1)
            values = {"loss": loss} | metrics
            found |= {final_key(phase, name): value for name, value in values.items()}
    return found


def _graph(experiment: Experiment) -> dict[str, Any]:
    """What a result says of a graph that is cut or sampled."""
    if experiment.sampling is None:
        redundancy = {"node_redundancy": 1.3, "edge_redundancy": 1.1}
        return {"mode": experiment.chunks, "edges_kept": 1.0} | redundancy
    assert experiment.batch_size is not None
    nodes = int(0.6 * experiment.data.facts().nodes)
    together = experiment.batch_size * experiment.layout.replicas
    return {"train_nodes": nodes, "steps_per_epoch": math.ceil(nodes / together)}


def rewrite_result(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """`change` takes what stands in a `result.json` and changes it, as if it was written so."""
    raw = json.loads(path.read_text())
    change(raw)
    path.write_text(json.dumps(with_digest(raw, NOT_DIGESTED)))


def many_cells(count: int, steps: int, layout: str) -> list[Experiment]:
    """`count` ViG cells of one layout, in configurations of 25 repeats each, and their baseline."""
    experiments = []
    for number in range(count):
        first = number < 25
        microbatches = 1 if first else 1 + number // 25 % 4
        settings = {
            "model": Vig(),
            "data": SyntheticCifar10(image_size=16),
            "layout": "seq" if first else layout,
            "microbatches": microbatches,
            "batch_size": microbatches * (1 + number // 100),
            "train_steps": steps - steps // 6,
            "test_steps": steps // 6,
            "repeat": number % 25,
        }
        experiments.append(Experiment.model_validate(settings))
    return experiments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--cells", type=int, required=True)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--layout", default="pp4")
    options = parser.parse_args()
    experiments = many_cells(options.cells, options.steps, options.layout)
    print(make_run(options.out, experiments))


if __name__ == "__main__":
    main()
