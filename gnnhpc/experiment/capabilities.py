"""What engines, schedules, tasks, data and devices can do together.

An engine is one row of `ENGINES`. The first thing that does not fit is the user's error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gnnhpc.core.schedules import ScheduleName
from gnnhpc.experiment.experiment_settings import ExperimentSettings
from gnnhpc.models.custom_model import CustomModel

_ALL: tuple[ScheduleName, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble", "zbv")


@dataclass(frozen=True)
class EngineRow:
    """What an engine can do with several stages; a single stage is run by none of them."""

    schedules: tuple[ScheduleName, ...] = _ALL
    recomputes: bool = True
    """Whether stages may recompute activations."""
    buckets: bool = False
    """Whether replicas may reduce gradients in buckets."""
    uneven_rows: bool = False
    """Whether micro-batches may have other rows each, as sampled ones and small graphs have."""
    fills_pipeline: bool = False
    """Whether its 1F1B and ZB-H1 need micro-batches that fill the pipeline."""


ENGINES = {
    "native": EngineRow(buckets=True, uneven_rows=True),
    "pipelining": EngineRow(recomputes=False, fills_pipeline=True),
    "torchgpipe": EngineRow(schedules=("gpipe",)),
}


def misfit(experiment: ExperimentSettings) -> str | None:
    """The first thing that does not fit, in one line; None for an experiment that can be run."""
    for family in (_data, _batches, _links, _pipeline, _others):
        for line in family(experiment):
            return line
    model = experiment.model
    return model.misfit_of_data(experiment.kind) or model.misfit()


def _data(e: ExperimentSettings) -> Iterator[str]:
    data, model = f"data: found {e.data.name!r}", f"model {e.model.name}"
    if e.kind not in e.model.takes:
        yield f"{data}; allowed: {' or '.join(e.model.takes)} data for {model}"
    if _is_weighted(e) and not e.model.uses_edge_weight:
        yield f"{data} with weights of edges; allowed: a file without them for {model}"
    if e.sampling is not None and e.kind != "graph":
        yield f"sampling: found a mapping; allowed: none for {e.kind}"
    is_cut = e.kind == "graph" and e.sampling is None
    if not is_cut and e.kind != "images" and e.chunks != "contiguous":
        yield f"chunks: found {e.chunks!r}; allowed: none with sampling and for small graphs"
    if e.rebuild == "layer" and not (is_cut and e.chunks != "halo"):
        yield "rebuild: found 'layer'; allowed: 'once' but for chunks of a graph without a halo"


def _batches(e: ExperimentSettings) -> Iterator[str]:
    size, facts = e.batch_size, e.data_facts
    microbatches = f"microbatches: found {e.microbatches}; allowed:"
    if e.kind == "graph" and e.sampling is None:
        if size is not None:
            yield f"batch_size: found {size}; allowed: none, as a graph is one mini-batch"
        if e.total_chunks > facts.nodes:
            yield f"{microbatches} at most one chunk a node"
        return
    units = {"images": "images", "graphs": "graphs"}.get(e.kind, "nodes")
    if size is None:
        yield f"batch_size: found none; allowed: {units} a mini-batch and replica"
        return
    if e.kind == "images" and size % e.microbatches:
        yield f"{microbatches} a divisor of batch_size {size}"
    if e.microbatches > size:
        yield f"{microbatches} at most batch_size {size}"
    most = facts.train or facts.nodes
    if e.kind == "images" and e.test_steps:
        most = min(most, facts.test)
    # How many links there are is known once the graph is read.
    if e.task is None and size * e.layout.replicas > most:
        found = f"batch_size: found {size} x {e.layout.replicas} replicas"
        yield f"{found}; allowed: at most the {most} {units} to train on of {e.data.name}"


def _links(e: ExperimentSettings) -> Iterator[str]:
    if e.task is None:
        return
    if e.sampling is None or e.sampling.sampler != "ours":
        yield "task: found 'links'; allowed: none, or links with sampling by sampler ours"
        return
    if e.sampling.inductive:
        yield "sampling.inductive: found true; allowed: false with task links"
    if e.evaluates_sampled:
        yield "sampling.evaluation: found 'sampled'; allowed: whole with task links"
    if isinstance(e.model, CustomModel):
        yield f"model: found {e.model.name!r}; allowed: a built-in model with task links"
    if _is_weighted(e):
        yield "data: found edge_weight; allowed: a file without it with task links"


def _pipeline(e: ExperimentSettings) -> Iterator[str]:
    stages, row = e.layout.stages, ENGINES[e.engine]
    virtual_stages = f"virtual_stages: found {e.virtual_stages}; allowed:"
    if stages == 1:
        if e.virtual_stages > 1:
            yield f"{virtual_stages} 1 for a single stage"
        return
    schedule, of = f"schedule: found {e.schedule!r}; allowed:", f"for schedule {e.schedule}"
    layout = f"layout: found {str(e.layout)!r}; allowed:"
    if e.schedule not in row.schedules:
        yield f"{schedule} {', '.join(row.schedules)} for engine {e.engine}"
    if e.schedule == "interleaved" and e.virtual_stages == 1:
        yield f"{virtual_stages} at least 2 {of}"
    if e.schedule == "zbv" and e.virtual_stages != 2:
        yield f"{virtual_stages} 2 {of}"
    if e.schedule not in ("interleaved", "zbv") and e.virtual_stages > 1:
        yield f"{virtual_stages} 1 {of}"
    if (e.schedule == "interleaved" or e.split_backward) and e.device == "gpu":
        yield f"{schedule} gpipe or 1f1b on gpu"
    yield from _rounds(e, row)
    uneven = e.kind == "graphs" or e.sampling is not None
    ours = e.sampling is None or e.sampling.sampler == "ours"
    if uneven and not (ours and row.uneven_rows and e.device == "cpu"):
        yield (
            f"{layout} seq or dp<R>, since micro-batches have other rows each; stages for engine "
            "native and sampler ours on cpu"
        )
    if e.activation_checkpointing != "never" and not row.recomputes:
        found = f"activation_checkpointing: found {e.activation_checkpointing!r}"
        yield f"{found}; allowed: never for engine {e.engine}"


def _rounds(e: ExperimentSettings, row: EngineRow) -> Iterator[str]:
    """Numbers of micro-batches that leave stages without work where they may not be."""
    stages, count = e.layout.stages, e.microbatches
    found, of = f"microbatches: found {count}; allowed:", f"for schedule {e.schedule}"
    if e.schedule == "interleaved" and count % stages:
        yield f"{found} a multiple of {stages}, the stages of {e.layout}, {of}"
    if row.fills_pipeline and e.schedule == "1f1b" and count < stages:
        yield f"{found} at least {stages}, one a stage of {e.layout}, {of} of engine {e.engine}"
    if (
        row.fills_pipeline
        and e.schedule == "zero-bubble"
        and count >= 2 * stages
        and count % stages
    ):
        yield (
            f"{found} fewer than {2 * stages}, or a multiple of {stages}, the stages of "
            f"{e.layout}, {of} of engine {e.engine}"
        )


def _others(e: ExperimentSettings) -> Iterator[str]:
    is_torch = getattr(e.model, "implementation", None) == "pyg" or isinstance(e.model, CustomModel)
    if e.compile != "off" and not is_torch:
        yield f"compile: found {e.compile!r}; allowed: off but for implementation pyg"
    in_buckets = e.device == "cpu" and (e.layout.stages == 1 or ENGINES[e.engine].buckets)
    if e.bucket_mib is not None and e.layout.replicas > 1 and not in_buckets:
        yield f"bucket_mib: found {e.bucket_mib}; allowed: none but on cpu with engine native"
    total = e.total_virtual_stages
    if isinstance(e.balance, tuple) and len(e.balance) != total:
        found = f"balance: found {list(e.balance)}"
        yield f"{found}; allowed: one count for each of the {total} virtual stages of {e.layout}"


def _is_weighted(e: ExperimentSettings) -> bool:
    return bool(getattr(e.data, "weighted", False))
