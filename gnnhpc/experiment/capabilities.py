"""What engines, schedules, tasks, data and devices can do together, as a table of rules.

An engine is one row of `ENGINES`. A rule returns what does not fit, as `key: found X; allowed: Y`,
or None; the first that does not fit is the user's error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnnhpc.core.schedules import ScheduleName
from gnnhpc.experiment.experiment_settings import ExperimentSettings
from gnnhpc.models.custom_model import CustomModel

Rule = Callable[[ExperimentSettings], str | None]
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
    replicas_of_virtual_stages: bool = True
    """Whether replicas may have several virtual stages, or a split backward."""
    fills_pipeline: bool = False
    """Whether its 1F1B and ZB-H1 need micro-batches that fill the pipeline."""


ENGINES = {
    "native": EngineRow(buckets=True, uneven_rows=True),
    "pipelining": EngineRow(
        recomputes=False, replicas_of_virtual_stages=False, fills_pipeline=True
    ),
    "torchgpipe": EngineRow(schedules=("gpipe",)),
}


def misfit(experiment: ExperimentSettings) -> str | None:
    """What does not fit, in one line; None for an experiment that can be run."""
    return next(filter(None, (rule(experiment) for rule in RULES)), None)


def _data_of_the_model(e: ExperimentSettings) -> str | None:
    takes = e.model.kinds()
    if e.kind in takes:
        return e.model.misfit_of_data(e.kind) or _edge_weights(e)
    allowed = f"{' or '.join(takes)} data for model {e.model.name}"
    return f"data: found {e.data.name!r}; allowed: {allowed}"


def _edge_weights(e: ExperimentSettings) -> str | None:
    """Weights that would be read and not used."""
    if not getattr(e.data, "weighted", False):
        return None
    if not e.model.weighs_edges():
        return (
            f"model: found {e.model.name}, which does not use weights of edges; allowed: gcn, "
            "graphconv, resgcn, gcnii, or data.ignore: [edge_weight]"
        )
    return None


_UNITS = {"images": "images", "graphs": "graphs", "graph": "nodes"}


def _sampling(e: ExperimentSettings) -> str | None:
    words = {"images": "images", "graphs": "many small graphs"}.get(e.kind)
    if e.sampling is None or words is None:
        return None
    return f"sampling: found a mapping; allowed: none for {words}"


def _batch_size(e: ExperimentSettings) -> str | None:
    batched = e.kind != "graph" or e.sampling is not None
    if batched and e.batch_size is None:
        return f"batch_size: found none; allowed: {_UNITS[e.kind]} a mini-batch and replica"
    if not batched and e.batch_size is not None:
        return (
            f"batch_size: found {e.batch_size}; allowed: none without sampling, a graph is one "
            "mini-batch"
        )
    return None


def _microbatches(e: ExperimentSettings) -> str | None:
    size, found = e.batch_size, f"microbatches: found {e.microbatches}; allowed:"
    if size is None:
        return f"{found} at most one chunk a node" if e.total_chunks > e.data_facts.nodes else None
    if e.kind == "images":
        return f"{found} a divisor of batch_size {size}" if size % e.microbatches else None
    if e.microbatches > size:
        one = "graph" if e.kind == "graphs" else "node"
        return f"{found} at most batch_size {size}, a {one} of each"
    return None


def _samples(e: ExperimentSettings) -> str | None:
    """Of a sampled graph without the number of its links, which the graph alone has."""
    if e.batch_size is None or e.task is not None:
        return None
    facts, name, replicas = e.data_facts, e.data.name, e.layout.replicas
    most, which = facts.train, f"{facts.train} graphs to train on of {name}"
    if e.kind == "images":
        most = min(facts.train, facts.test) if e.test_steps else facts.train
        which = f"{most} images of {name}"
    elif e.kind == "graph":
        most = facts.train or facts.nodes
        which = f"{most} nodes{' to train on' if facts.train else ''} of {name}"
    if e.batch_size * replicas <= most:
        return None
    found = f"{e.batch_size} x {replicas} replicas"
    return f"batch_size: found {found}; allowed: at most the {which}"


def _uneven_rows(e: ExperimentSettings) -> str | None:
    uneven = e.kind == "graphs" or e.sampling is not None
    if e.layout.stages == 1 or not uneven:
        return None
    runs = ENGINES[e.engine].uneven_rows and e.device == "cpu"
    layout = f"layout: found {str(e.layout)!r}; allowed: seq or dp<R> with"
    if e.kind == "graphs" and not runs:
        return (
            f"{layout} many small graphs, and stages with engine native, device cpu: "
            "micro-batches have other rows each"
        )
    if e.sampling is not None and not (runs and e.sampling.sampler == "ours"):
        return (
            f"{layout} sampling, and stages with sampler ours, engine native, device cpu: every "
            "stage draws what the others draw"
        )
    return None


def _chunks(e: ExperimentSettings) -> str | None:
    if e.kind == "graphs" and e.chunks != "contiguous":
        return (
            f"chunks: found {e.chunks!r}; allowed: none for many small graphs, none of which is cut"
        )
    if e.sampling is not None and (e.chunks != "contiguous" or e.rebuild != "once"):
        key = "rebuild" if e.chunks == "contiguous" else "chunks"
        found = f"{key}: found {getattr(e, key)!r}"
        return f"{found}; allowed: none with sampling, which chooses edges itself"
    return None


def _features(e: ExperimentSettings) -> str | None:
    if e.features == "auto" or e.kind != "images":
        return None
    return f"features: found {e.features!r}; allowed: auto for images, which are dense"


def _links(e: ExperimentSettings) -> str | None:
    if e.task is None:
        return None
    sampling = e.sampling
    if sampling is None or sampling.sampler != "ours":
        found = "no sampling" if sampling is None else f"sampler {sampling.sampler}"
        return (
            f"task: found 'links' and {found}; allowed: sampling with sampler ours, which leaves "
            "out the links that a step predicts"
        )
    if sampling.inductive:
        return (
            "sampling.inductive: found true; allowed: false with task links, which keeps the links "
            "that are scored from all layers, but no nodes"
        )
    if sampling.evaluation != "whole":
        return "sampling.evaluation: found 'sampled'; allowed: whole with task links"
    return _links_of(e)


def _links_of(e: ExperimentSettings) -> str | None:
    if isinstance(e.model, CustomModel):
        return f"task: found 'links' and model {e.model.name!r}; allowed: a built-in model"
    if getattr(e.data, "weighted", None):
        return "task: found 'links' and edge_weight in data; allowed: data.ignore: [edge_weight]"
    return None


def _model(e: ExperimentSettings) -> str | None:
    return e.model.misfit()


def _virtual_stages(e: ExperimentSettings) -> str | None:
    """Schedules interleaved and zbv have several a stage, others one."""
    found = f"virtual_stages: found {e.virtual_stages}; allowed:"
    if e.layout.stages == 1:
        return f"{found} 1 for a single stage" if e.virtual_stages > 1 else None
    if e.schedule == "interleaved":
        return f"{found} at least 2 for schedule interleaved" if e.virtual_stages == 1 else None
    wanted = 2 if e.schedule == "zbv" else 1
    return f"{found} {wanted} for schedule {e.schedule}" if e.virtual_stages != wanted else None


def _rounds(e: ExperimentSettings) -> str | None:
    """Micro-batches that a schedule needs to be full."""
    stages, count = e.layout.stages, e.microbatches
    found = f"microbatches: found {count}; allowed:"
    of_stages = f"a multiple of {stages}, the stages of {e.layout}"
    if e.schedule == "interleaved" and stages > 1 and count % stages:
        return f"{found} {of_stages}, for schedule interleaved"
    return None


def _schedule(e: ExperimentSettings) -> str | None:
    if e.layout.stages == 1:
        return None
    several = e.schedule == "interleaved" or e.split_backward
    if several and (e.schedule not in ENGINES[e.engine].schedules or e.device == "gpu"):
        return (
            f"schedule: found {e.schedule!r}; allowed: gpipe for engine {e.engine} on {e.device}, "
            f"{e.schedule} for engines native and pipelining on cpu"
        )
    replicas = e.layout.replicas > 1 and not ENGINES[e.engine].replicas_of_virtual_stages
    if several and replicas:
        return (
            f"layout: found {str(e.layout)!r}; allowed: pp<S> for schedule {e.schedule} of engine "
            f"{e.engine}"
        )
    return None


def _full_pipeline(e: ExperimentSettings) -> str | None:
    if not ENGINES[e.engine].fills_pipeline:
        return None
    stages, of = e.layout.stages, f"schedule {e.schedule} of engine {e.engine}"
    found = f"microbatches: found {e.microbatches}; allowed:"
    if e.schedule == "1f1b" and e.microbatches < stages:
        return f"{found} at least {stages}, one a stage of {e.layout}, for {of}"
    in_rounds = e.microbatches % stages == 0 or e.microbatches < 2 * stages
    if e.schedule == "zero-bubble" and not in_rounds:
        return (
            f"{found} a multiple of {stages}, the stages of {e.layout}, or fewer than "
            f"{2 * stages}, for {of}"
        )
    return None


def _rebuild(e: ExperimentSettings) -> str | None:
    if e.rebuild == "once" or (e.kind == "graph" and e.chunks != "halo"):
        return None
    of = "chunks: halo" if e.kind == "graph" else e.kind
    return f"rebuild: found 'layer'; allowed: 'once' for {of}"


def _engine(e: ExperimentSettings) -> str | None:
    row = ENGINES[e.engine]
    if e.layout.stages > 1 and e.schedule not in row.schedules:
        return (
            f"schedule: found {e.schedule!r}; allowed: {', '.join(row.schedules)} for engine "
            f"{e.engine}"
        )
    recomputes = e.activation_checkpointing != "never"
    if e.layout.stages > 1 and recomputes and not row.recomputes:
        return (
            f"activation_checkpointing: found {e.activation_checkpointing!r}; allowed: never for "
            f"engine {e.engine}"
        )
    return None


def _compile(e: ExperimentSettings) -> str | None:
    implementation = getattr(e.model, "implementation", None)
    if e.compile == "off" or isinstance(e.model, CustomModel) or implementation == "pyg":
        return None
    return (
        f"compile: found {e.compile!r} for implementation {implementation}; allowed: off, as torch "
        "cannot compile its kernels; other values for implementation pyg and custom models"
    )


def _buckets(e: ExperimentSettings) -> str | None:
    if e.bucket_mib is None or e.layout.replicas == 1:
        return None
    reduces = e.layout.stages == 1 or ENGINES[e.engine].buckets
    if reduces and e.device == "cpu":
        return None
    where = "on gpu" if reduces else f"for engine {e.engine}"
    return f"bucket_mib: found {e.bucket_mib}; allowed: none {where}"


def _balance(e: ExperimentSettings) -> str | None:
    if isinstance(e.balance, tuple) and len(e.balance) != e.total_virtual_stages:
        which = f"{e.layout.stages} stages of {e.layout}"
        if e.virtual_stages > 1:
            which = f"{e.total_virtual_stages} virtual stages of the {which}"
        return f"balance: found {list(e.balance)}; allowed: one count for each of the {which}"
    return None


RULES: tuple[Rule, ...] = (
    *(_data_of_the_model, _sampling, _chunks, _batch_size, _microbatches, _samples, _uneven_rows),
    *(_features, _links, _model, _virtual_stages, _rounds, _schedule, _full_pipeline, _rebuild),
    *(_engine, _compile, _buckets, _balance),
)
