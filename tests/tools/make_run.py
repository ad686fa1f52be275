"""Write a run folder as workers would, without running anything: for tests and for timing reports.

python tests/tools/make_run.py OUT --repeats 2            # a small sweep of both models
python tests/tools/make_run.py OUT --cells 1000 --steps 120 --layout pp4
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnhpc.batches.shuffle import Shares
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.core.layout import Layout
from gnnhpc.core.run_paths import AttemptPaths, RunPaths
from gnnhpc.core.schedules import Slot, timeline, virtual_stage_number
from gnnhpc.data.data_settings import SyntheticCifar10
from gnnhpc.data.published_graphs import PublishedGraph
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.experiment.manifest import Cell, assign_indices, write_manifest
from gnnhpc.experiment.stage_cut import cut
from gnnhpc.models.gat import Gat
from gnnhpc.models.vig.model import Vig
from gnnhpc.records.result_file import Result, final_key
from gnnhpc.records.schema import (
    Check,
    EventRecord,
    Failure,
    Header,
    Phase,
    SpanRecord,
    Status,
    StepRecord,
)
from gnnhpc.records.submissions import PROVENANCE_VERSION

STARTED = "2026-03-01T09:00:00+00:00"
ENDED = "2026-03-01T09:10:00+00:00"
CODE = "0123456789abcdef"
VERSIONS = {"python": "3.11.7", "torch": "2.9.1"}


@dataclass(frozen=True)
class Machine:
    """What the made-up machine does to the costs of the outline."""

    seconds_a_unit: float = 2e-10
    """Forward seconds of one outline cost unit and one row."""
    backward: float = 2.0
    """Backward seconds for one forward second."""
    weights: Callable[[Experiment], float] = lambda _: 0.5
    """Of backward, the share of gradients of weights, where these are apart."""
    sequential: float = 1.0
    """What one process pays for the same layers, relative to stages."""
    overhead: float = 0.02
    """Added to the ideal step, relative."""
    noise: float = 0.01
    """Standard deviation of a step, relative."""
    drawing_s: Callable[[Experiment], float] = lambda _: 0.004
    """What a sampled mini-batch of full size takes before its step's first barrier."""
    first_step: float = 1.5
    """How much longer the first step of a phase takes."""
    runs_differ: float = 0.0
    """Standard deviation of a run's logarithm from that of others."""
    slower: Mapping[str, float] = field(default_factory=dict)
    """Group of layers -> how many times as long it takes."""
    pace: Callable[[Experiment], float] = lambda _: 1.0
    """How many times as long the layers of an experiment take."""
    accuracy: Callable[[Experiment], float] = lambda experiment: 0.6 - 0.01 * experiment.seed
    """Of test images or nodes in the end, and of a graph's validation nodes."""


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
    started: str = STARTED
    header: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the ranks' headers, such as host or code."""
    slurm: Mapping[str, str] = field(default_factory=dict)
    """What its result keeps of SLURM_*."""


@dataclass
class _Plan:
    """The seconds of one cell: per part of the model and group, forward and backward of a
    mini-batch. Part p of stage s is number p*S + s."""

    experiment: Experiment
    parts: list[list[LayerSpec]]
    groups: list[dict[str, tuple[float, float]]] = field(default_factory=list)

    def of_stage(self, stage: int) -> list[int]:
        """The numbers of its parts."""
        schedule, stages = self.experiment.schedule, self.experiment.layout.stages
        count = len(self.parts) // stages
        return [virtual_stage_number(schedule, stage, stages, part) for part in range(count)]

    def layers(self, stage: int) -> list[LayerSpec]:
        return [layer for number in self.of_stage(stage) for layer in self.parts[number]]


def small_sweep(
    repeats: int = 2, train_steps: int = 12, test_steps: int = 4, **changes: Any
) -> list[Experiment]:
    """Both models in the four layouts, as a quick sweep of the suite would have them."""
    experiments: list[Experiment] = []
    for repeat, layout in itertools.product(range(repeats), ("seq", "pp2", "pp4", "dp2-pp2")):
        common = {
            "layout": layout,
            "repeat": repeat,
            "train_steps": train_steps,
            "test_steps": test_steps,
        } | changes
        vig = {
            "model": Vig(),
            "data": SyntheticCifar10(image_size=16),
            "batch_size": 100,
            **common,
        }
        gat = {"model": Gat(), "data": PublishedGraph(name="cora"), "chunks": "halo", **common}
        images, chunks = ((1, 5, 10), (1,)) if layout == "seq" else ((5, 10), (2, 4))
        experiments += [Experiment.model_validate(vig | {"microbatches": m}) for m in images]
        experiments += [Experiment.model_validate(gat | {"microbatches": m}) for m in chunks]
    return experiments


def make_run(
    root: Path,
    experiments: Iterable[Experiment] | None = None,
    *,
    stories: Mapping[str, Sequence[Story]] | None = None,
    machine: Machine | None = None,
    seed: int = 0,
) -> Path:
    """Write `root` as a finished run; `stories` gives some cells, by id, other attempts."""
    root.mkdir(parents=True)
    paths = RunPaths(root)
    cells = assign_indices(small_sweep() if experiments is None else experiments)
    write_manifest(paths.manifest, cells)
    paths.sweep.write_text("name: made\n", encoding="utf-8")
    paths.provenance.write_text(
        json.dumps(
            {
                "version": PROVENANCE_VERSION,
                "git_commit": "0" * 40,
                "host": "login1",
                "command": "python -m jobs submit",
                "cells": len(cells),
            }
        ),
        encoding="utf-8",
    )
    rng = np.random.default_rng(seed)
    for cell in cells:
        for story in (stories or {}).get(cell.id, (Story(),)):
            write_attempt(
                paths.cell(cell.id).claim_attempt(), cell, story, machine or Machine(), rng
            )
    return root


def write_attempt(
    attempt: AttemptPaths, cell: Cell, story: Story, machine: Machine, rng: np.random.Generator
) -> None:
    """One attempt's rank files and, last, its result."""
    experiment = cell.experiment
    if machine.runs_differ:
        pace = math.exp(rng.normal(0.0, machine.runs_differ))
        machine = replace(machine, seconds_a_unit=machine.seconds_a_unit * pace)
    plan = _plan(experiment, machine)
    first = story.resumed_from["step"] if story.resumed_from else 0
    last = experiment.train_steps if story.stop_at is None else story.stop_at
    whole = last == experiment.train_steps and story.status == "done"
    lines: list[list[str]] = [[] for _ in range(experiment.layout.world_size)]
    clock = 0.0
    for phase, begin, end in (
        ("train", first, last),
        ("test", 0, experiment.test_steps if whole else 0),
    ):
        for step in range(begin, end):
            clock += _write_step(lines, plan, phase, step, begin, clock, machine, rng)  # type: ignore[arg-type]
    for rank, body in enumerate(lines):
        header = replace(_header(attempt, cell, plan, rank), **story.header)
        text = json.dumps(asdict(replace(header, started_at=story.started))) + "\n"
        if story.resumed_from:
            text += json.dumps(asdict(EventRecord("resumed", 0.0, story.resumed_from))) + "\n"
        text += "".join(body)
        if story.cut_short:
            text += '{"phase": "train", "step": 99'
        attempt.records(rank).write_text(text, encoding="utf-8")
    if story.finished:
        result = _result(attempt, cell, story, plan, last, machine)
        replace(result, records=_digests(attempt, story, experiment)).write(attempt.result)


def _digests(
    attempt: AttemptPaths, story: Story, experiment: Experiment
) -> dict[str, dict[str, Any]]:
    """Size and SHA-256 of the rank files of an attempt and of the one that it resumed."""
    folders = {"": attempt.root}
    if story.resumed_from:
        name = f"attempt-{story.resumed_from['attempt']}"
        folders[f"../{name}/"] = attempt.root.with_name(name)
    found = {}
    for prefix, folder in folders.items():
        for rank in range(experiment.layout.world_size):
            path = AttemptPaths(folder).records(rank)
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()
            found[prefix + path.name] = {"size": len(content), "sha256": digest}
    return found


def _plan(experiment: Experiment, machine: Machine) -> _Plan:
    layers = experiment.model.outline(experiment.data.facts())
    parts = [[layers[i] for i in part] for part in cut(experiment)]
    plan = _Plan(experiment, parts)
    slow = machine.sequential if experiment.layout.world_size == 1 else 1.0
    rows = _replica_rows(experiment)
    if experiment.sampling is not None:
        rows *= experiment.data.facts().edges / experiment.data.facts().nodes
    for part in parts:
        groups: dict[str, tuple[float, float]] = {}
        for layer in part:
            forward = layer.cost * rows * machine.seconds_a_unit * slow
            forward *= machine.slower.get(layer.group, 1.0) * machine.pace(experiment)
            before = groups.get(layer.group, (0.0, 0.0))
            groups[layer.group] = (before[0] + forward, before[1] + forward * machine.backward)
        plan.groups.append(groups)
    return plan


def _replica_rows(experiment: Experiment) -> int:
    if experiment.batch_size is not None:
        return experiment.batch_size
    return math.ceil(experiment.data.facts().nodes / experiment.layout.replicas)


def _write_step(
    lines: list[list[str]],
    plan: _Plan,
    phase: Phase,
    step: int,
    begin: int,
    clock: float,
    machine: Machine,
    rng: np.random.Generator,
) -> float:
    """All ranks' lines of one step; returns its wall seconds."""
    experiment = plan.experiment
    layout, m, parts = experiment.layout, experiment.microbatches, experiment.virtual_stages
    factor = 1.0 + abs(rng.normal(0.0, machine.noise))
    if step == begin:
        factor *= machine.first_step
    training = phase == "train"
    drawn = training and experiment.sampling is not None
    warm = step - begin < experiment.warmup_steps
    count = experiment.profiled_steps(begin) if training else 0
    profiled = not warm and step - begin - experiment.warmup_steps < count
    epoch, shares = step // 10, _whole_shares(experiment)
    if drawn:
        epoch, shares = _shares(experiment, step)
        factor *= sum(shares) / (_replica_rows(experiment) * layout.replicas)
    making = machine.drawing_s(experiment) * factor
    forward = [sum(f for f, _ in groups.values()) * factor / m for groups in plan.groups]
    backward = [sum(b for _, b in groups.values()) * factor / m for groups in plan.groups]
    apart = experiment.split_backward
    share = machine.weights(experiment) if apart else 0.0
    slots = timeline(
        *(experiment.schedule, forward, [(1 - share) * of for of in backward], m),
        weights_s=[share * of for of in backward],
        virtual_stages=parts,
        training=training,
    )
    if not apart:
        slots = [slot for slot in slots if slot.action.kind != "weights"]
    ideal = max(slot.end_s for slot in slots)
    wall = ideal * (1.0 + machine.overhead)
    metrics, loss = _quality(experiment, machine, phase, step)
    for rank in range(layout.world_size):
        stage = layout.stage_of(rank)
        extra = (wall - ideal) / 4.0 if training else 0.0
        virtual_stage_s = [
            [forward[number] * m, backward[number] * m if training else 0.0]
            for number in plan.of_stage(stage)
        ]
        own_forward, own_backward = (sum(seconds) for seconds in zip(*virtual_stage_s, strict=True))
        if apart:
            virtual_stage_s = [[*seconds, share * seconds[1]] for seconds in virtual_stage_s]
        own = own_forward + own_backward
        record = StepRecord(
            phase=phase,
            step=step,
            epoch=epoch,
            warmup=warm,
            start_s=clock + making if drawn else clock,
            wall_s=wall,
            cpu_s=own + 2 * extra,
            forward_s=own_forward,
            backward_s=own_backward,
            allreduce_s=extra if layout.replicas > 1 else 0.0,
            optimizer_s=extra,
            wait_s=max(0.0, wall - own - extra * (2 if layout.replicas > 1 else 1)),
            data_s=making if drawn else 1e-4,
            sample_s=0.25 * making if drawn else None,
            gather_s=0.75 * making if drawn else None,
            sampled_edges=60 * shares[layout.replica_of(rank)] if drawn else None,
            samples=shares[layout.replica_of(rank)],
            loss=loss if stage == experiment.loss_stage else None,
            metrics=metrics if stage == experiment.loss_stage else {},
            groups=_group_seconds(plan, stage, factor, training=training) if profiled else {},
            profiled=profiled,
            peak_rss_mib=300.0 + 10 * stage,
            involuntary_switches=int(rng.integers(0, 3)),
            steal_s=0.0,
            # Together the stages of every layout have the same gradient.
            grad_norm=1.0 / (1.0 + step) / math.sqrt(layout.stages) if training else None,
            virtual_stage_s=virtual_stage_s if parts > 1 else None,
            weights_s=share * own_backward if apart else None,
        )
        lines[rank].append(json.dumps(vars(record)) + "\n")
        if experiment.spans:
            mine = [slot for slot in slots if slot.stage == stage]
            lines[rank] += _spans(phase, step, mine, wall, extra, layout.replicas)
    return wall + making if drawn else wall


def _group_seconds(
    plan: _Plan, stage: int, factor: float, *, training: bool
) -> dict[str, list[float]]:
    """Of all parts of a stage; two of them may have layers of one group."""
    found: dict[str, list[float]] = {}
    for number in plan.of_stage(stage):
        for name, (forward, backward) in plan.groups[number].items():
            before = found.get(name, [0.0, 0.0])
            later = backward * factor if training else 0.0
            found[name] = [before[0] + forward * factor, before[1] + later]
    return found


def _shares(experiment: Experiment, step: int) -> tuple[int, list[int]]:
    """The epoch of a step of a sampled graph, and the nodes of each replica."""
    assert experiment.batch_size is not None
    nodes, replicas = _train_nodes(experiment), experiment.layout.replicas
    sizes = (torch.arange(nodes), experiment.batch_size, 1, replicas)
    found = [Shares(*sizes, replica, seed=0).of_step(step) for replica in range(replicas)]
    return found[0].epoch, [len(share.places) for share in found]


def _whole_shares(experiment: Experiment) -> list[int]:
    """The samples of each replica in a whole mini-batch, which may be a graph."""
    replicas = experiment.layout.replicas
    if experiment.batch_size is not None:
        return [experiment.batch_size] * replicas
    ends = [experiment.data.facts().nodes * number // replicas for number in range(replicas + 1)]
    return [stop - start for start, stop in itertools.pairwise(ends)]


def _train_nodes(experiment: Experiment) -> int:
    return int(0.6 * experiment.data.facts().nodes)


def _spans(
    phase: Phase, step: int, slots: list[Slot], wall: float, extra: float, replicas: int
) -> list[str]:
    spans: list[SpanRecord] = []
    now = 0.0
    for slot in slots:
        if slot.start_s > now:
            spans.append(SpanRecord(phase, step, "wait", None, now, slot.start_s))
        action = slot.action
        times = slot.start_s, slot.end_s
        spans.append(
            SpanRecord(
                phase,
                step,
                action.kind,
                action.microbatch,
                *times,
                virtual_stage=action.virtual_stage,
            )
        )
        now = slot.end_s
    if extra and replicas > 1:
        spans.append(SpanRecord(phase, step, "allreduce", None, wall - 2 * extra, wall - extra))
    if extra:
        spans.append(SpanRecord(phase, step, "optimizer", None, wall - extra, wall))
    return [json.dumps(vars(span)) + "\n" for span in spans]


def _quality(
    experiment: Experiment, machine: Machine, phase: Phase, step: int
) -> tuple[dict[str, float], float]:
    """Metrics and loss of a step."""
    images = experiment.model.name == "vig"
    if phase == "test":
        accuracy = machine.accuracy(experiment)
        return dict.fromkeys(("accuracy", "val_accuracy")[: 2 - images], accuracy), 1.2
    accuracy = 1.0 - 0.9 * math.exp(-0.05 * (step + 1))
    return {"accuracy": accuracy}, 2.3 * math.exp(-0.02 * step)


def _header(attempt: AttemptPaths, cell: Cell, plan: _Plan, rank: int) -> Header:
    layout = cell.experiment.layout
    stage = layout.stage_of(rank)
    return Header(
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
        layers=[layer.name for layer in plan.layers(stage)],
        parameters=sum(layer.parameters for layer in plan.layers(stage)),
        started_at=STARTED,
        startup_s={"imports": 1.5, "rendezvous": 0.2},
    )


def _host(rank: int) -> str:
    return f"node{rank % 2 + 1}"


def _result(
    attempt: AttemptPaths,
    cell: Cell,
    story: Story,
    plan: _Plan,
    train_steps: int,
    machine: Machine,
) -> Result:
    experiment = cell.experiment
    layout: Layout = experiment.layout
    failure = None
    if story.status == "failed":
        failure = Failure(0, "node1", train_steps, "train", "RuntimeError: planted", ENDED)
    graph = experiment.data.facts().kind == "graph"
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
            "balance": [len(part) for part in plan.parts],
            "schedule": experiment.schedule,
            "virtual_stages": experiment.virtual_stages,
        },
        provenance={
            "git_commit": "0" * 40,
            "hosts": [_host(rank) for rank in range(layout.world_size)],
            "threads": 1,
            "code": CODE,
            "versions": VERSIONS,
            "slurm": dict(story.slurm),
        },
        started_at=story.started,
        ended_at=ENDED,
        train_steps=train_steps,
        test_steps=experiment.test_steps,
        samples_per_step=sum(_whole_shares(experiment)),
        final=_final(experiment, machine, train_steps),
        graph=_graph_facts(experiment) if graph else {},
        audit=[Check("samples", "ok", "each seen once"), *story.audit],
        validation={"seconds": 3.0, "attempt_s": 600.0},
        failure=failure,
        resumed_from=story.resumed_from,
    )


def _final(experiment: Experiment, machine: Machine, train_steps: int) -> dict[str, float]:
    """Loss and metrics of the last step of each phase."""
    found: dict[str, float] = {}
    for phase, steps in (("train", train_steps), ("test", experiment.test_steps)):
        if steps:
            metrics, loss = _quality(experiment, machine, phase, steps - 1)  # type: ignore[arg-type]
            values = {"loss": loss} | metrics
            found |= {final_key(phase, name): value for name, value in values.items()}
    return found


def _graph_facts(experiment: Experiment) -> dict[str, Any]:
    if experiment.sampling is None:
        return {
            "mode": experiment.chunks,
            "edges_kept": 1.0,
            "node_redundancy": 1.3,
            "edge_redundancy": 1.1,
            "own": _whole_shares(experiment),
        }
    assert experiment.batch_size is not None
    nodes, replicas = _train_nodes(experiment), experiment.layout.replicas
    shares = Shares(torch.arange(nodes), experiment.batch_size, 1, replicas, 0, seed=0)
    learnt = "train_nodes" if experiment.task is None else "train_links"
    return {learnt: nodes, "steps_per_epoch": shares.steps_per_epoch}


def many_cells(count: int, steps: int, layout: str) -> list[Experiment]:
    """`count` ViG cells of one layout, in configurations of 25 repeats each, and their baseline."""
    experiments = []
    for number in range(count):
        first = number < 25
        microbatches = 1 if first else 1 + number // 25 % 4
        experiments.append(
            Experiment.model_validate(
                {
                    "model": Vig(),
                    "data": SyntheticCifar10(image_size=16),
                    "layout": "seq" if first else layout,
                    "microbatches": microbatches,
                    "batch_size": microbatches * (1 + number // 100),
                    "train_steps": steps - steps // 6,
                    "test_steps": steps // 6,
                    "repeat": number % 25,
                }
            )
        )
    return experiments


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--spans", action="store_true")
    parser.add_argument("--cells", type=int)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--layout", default="pp4")
    given = parser.parse_args()
    if given.cells:
        experiments = many_cells(given.cells, given.steps, given.layout)
    else:
        experiments = small_sweep(given.repeats, spans=given.spans)
    print(make_run(given.out, experiments))


if __name__ == "__main__":
    main()
