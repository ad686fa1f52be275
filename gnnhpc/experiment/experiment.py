"""The experiment: typed settings, documented under each field, checked when built.

All fields are content: two equal experiments measure the same thing and have one cell id. Where
the data are stored, or which partition runs a cell, is not content and not here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, PlainSerializer, SerializeAsAny, model_validator

from gnnhpc.core.dataset_sizes import Facts, Kind
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import ALLOWED as LAYOUTS_ALLOWED
from gnnhpc.core.layout import Layout, processes_of
from gnnhpc.core.schedules import SPLIT_BACKWARD, Recomputation, ScheduleName, loss_stage
from gnnhpc.core.settings import Positive, Seed, Steps, Strict, Whole, parse_named
from gnnhpc.data.registry import parse_data
from gnnhpc.data.settings import Data
from gnnhpc.experiment.link_prediction import Links
from gnnhpc.experiment.sampling import Sampling
from gnnhpc.models.custom_model import CustomModel
from gnnhpc.models.model import Model, OutputKind
from gnnhpc.models.model_registry import parse_model
from gnnhpc.optimizers.adam import Adam
from gnnhpc.optimizers.optimizer import OptimizerConfig
from gnnhpc.optimizers.registry import allowed_optimizers, optimizer_class

SPEC_VERSION = 1


def _parse_layout(value: object) -> Layout:
    if isinstance(value, Layout):
        return value
    try:
        return Layout.parse(str(value))
    except InputError:
        raise ValueError(f"found {value!r}; allowed: {LAYOUTS_ALLOWED}") from None


LayoutField = Annotated[
    Layout, BeforeValidator(_parse_layout), PlainSerializer(str, return_type=str)
]


def _parse_activation_checkpointing(value: Any) -> Any:
    if value not in (*get_args(Recomputation), "all"):
        raise ValueError(f"found {value!r}; allowed: never, all (or always), or except_last")
    return "always" if value == "all" else value


ActivationCheckpointing = Annotated[Recomputation, BeforeValidator(_parse_activation_checkpointing)]


def _parse_optimizer(value: object) -> object:
    if isinstance(value, Mapping):
        value = {"name": "adam", **value}
    return parse_named(value, optimizer_class, allowed_optimizers())


OptimizerField = Annotated[SerializeAsAny[OptimizerConfig], BeforeValidator(_parse_optimizer)]
ModelField = Annotated[SerializeAsAny[Model], BeforeValidator(parse_model)]
DataField = Annotated[SerializeAsAny[Data], BeforeValidator(parse_data)]


class Experiment(Strict):
    """One cell: everything that decides what is computed, and nothing else."""

    model: ModelField
    """A model's name, or a mapping with its name and settings; `file:Class` is a custom model."""
    data: DataField
    """A data set's name, or a mapping with its name and settings; `name: file` is a custom
    graph."""
    layout: LayoutField = Layout()
    """`seq`, `pp<S>` for S stages, `dp<R>` for R replicas, or `dp<R>-pp<S>`."""
    microbatches: Positive = 1
    """Micro-batches a mini-batch and replica; for graphs, chunks a replica."""
    schedule: ScheduleName = "gpipe"
    """The order in which stages do forwards and backwards."""
    virtual_stages: Positive = 1
    """Virtual stages a stage under schedule interleaved: with 2 of them, stage 0 of pp2 holds the
    first and the third quarter of the layers. Schedule zbv always has two, and stage 0 holds the
    first and the last quarter."""
    engine: Literal["native", "pipelining", "torchgpipe"] = "native"
    """What runs several stages: our own engine, torch.distributed.pipelining, or torchgpipe, whose
    stages of a replica are one process with a GPU for each, or a CPU that they share."""
    activation_checkpointing: ActivationCheckpointing = "never"
    """The micro-batches whose activations a stage recomputes in backward: none, all, or all but the
    last. This writes nothing; see save_every for the files that a run resumes from."""
    bucket_mib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """MiB of gradients that replicas reduce together while earlier layers go backward; none reduces
    all gradients of a stage at once, after its last backward."""
    batch_size: Positive | None = None
    """Images, small graphs, or sampled nodes or links, in a mini-batch of a replica; none for a
    graph that is not sampled, which is one mini-batch."""
    train_steps: Annotated[Steps, Field(ge=1)] = 10
    """Mini-batches to train on."""
    test_steps: Annotated[Steps, Field(ge=0)] = 2
    """Mini-batches evaluated at each evaluation."""
    test_every: Annotated[Steps, Field(ge=1)] | None = None
    """Training steps between evaluations; none evaluates once, at the end."""
    warmup_steps: Annotated[Steps, Field(ge=0)] = 1
    """First steps of each phase that averages leave out."""
    optimizer: OptimizerField = Adam()
    """The optimizer and its settings; adam trains every model of the three studies."""
    chunks: Literal["contiguous", "clustered", "halo"] = "contiguous"
    """How a graph becomes micro-batches: in ranges of nodes or in METIS clusters, which both lose
    the edges between chunks, or with a halo, which keeps all edges. Where a graph is cut, the
    default is halo, or contiguous with rebuild: layer."""
    rebuild: Literal["once", "layer"] = "once"
    """When a chunk's edges are cut out of the graph: once at the start, or in each layer of each
    step on the CPU, as Dearing & Wang timed it."""
    sampling: Sampling | None = None
    """How mini-batches of a graph are sampled; none takes the whole graph in every step."""
    task: Links | None = None
    """The task: none classifies images, nodes or graphs; `links` predicts links of a sampled
    graph."""
    batchnorm: Literal["micro", "deferred"] = "micro"
    """Whether running statistics are updated a micro-batch at a time, or once a mini-batch."""
    balance: tuple[Positive, ...] | Literal["cost", "profile", "time", "size"] = "cost"
    """Layers a stage: by estimated cost, by measured cost (`profile`), or as counts. For engine
    torchgpipe also by its own measurement of `time`, or of memory on a GPU (`size`)."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of parameters and activations."""
    device: Literal["cpu", "gpu"] = "cpu"
    """What the ranks compute on."""
    seed: Seed = 0
    """Decides initial parameters, the order of samples, dropout and sampling. Another seed trains
    another model; see repeats for measuring the same one again."""
    repeat: Annotated[Whole, Field(ge=0)] = 0
    """Number of the measurement; repeats compute the same and differ only in time."""
    check: Literal["boundary", "off"] = "boundary"
    """Whether a run is validated at its start, its end and its checkpoints, or not at all."""
    profile_steps: Annotated[Whole, Field(ge=0)] = 3
    """Training steps after warm-up in which the seconds of each layer are measured; averages leave
    them out. They are at most a quarter of the steps after warm-up."""
    spans: bool = False
    """Whether records have a span for each micro-batch, which timelines are drawn from."""
    save_every: Annotated[Steps, Field(ge=1)] | None = None
    """Training steps between checkpoints, from which a requeued job resumes; none writes one on a
    signal only."""

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        kind = self.data.facts().kind
        self._take_default_chunks(kind)
        takes = self.model.kinds()
        if kind not in takes:
            raise ValueError(
                f"data: found {self.data.name!r}; allowed: {' or '.join(takes)} data for model "
                f"{self.model.name}"
            )
        if (misfit := self.model.misfit_of_data(kind)) is not None:
            raise ValueError(misfit)
        if kind == "images":
            self._check_images()
        elif kind == "graphs":
            self._check_graphs()
        elif self.sampling is not None:
            self._check_sampled()
        elif self.batch_size is not None:
            raise ValueError(
                f"batch_size: found {self.batch_size}; allowed: none without sampling, a graph is "
                "one mini-batch"
            )
        elif self.total_chunks > self.data.facts().nodes:
            raise ValueError(
                f"microbatches: found {self.microbatches}; allowed: at most one chunk a node"
            )
        if self.task is not None:
            self._check_links()
        if (misfit := self.model.misfit("halo" if self.sampling else self.chunks)) is not None:
            raise ValueError(misfit)
        self._check_schedule()
        if self.rebuild == "layer" and (kind != "graph" or self.chunks == "halo"):
            of = "chunks: halo" if kind == "graph" else kind
            raise ValueError(f"rebuild: found 'layer'; allowed: 'once' for {of}")
        self._check_engine()
        if isinstance(self.balance, tuple) and len(self.balance) != self.model_parts:
            which = f"{self.layout.stages} stages of {self.layout}"
            if self.virtual_stages > 1:
                which = f"{self.model_parts} parts of the {which}"
            raise ValueError(
                f"balance: found {list(self.balance)}; allowed: one count for each of the {which}"
            )
        return self

    def _take_default_chunks(self, kind: Kind) -> None:
        """Keep all edges of a graph that becomes several chunks, unless its settings say more."""
        whole = kind == "graph" and self.sampling is None and self.rebuild == "once"
        if whole and self.total_chunks > 1 and "chunks" not in self.model_fields_set:
            self.__dict__["chunks"] = "halo"

    def _check_schedule(self) -> None:
        """Raise ValueError where the schedule does not fit the layout, micro-batches, engine or
        device."""
        stages = self.layout.stages
        interleaved = self.schedule == "interleaved" and stages > 1
        if interleaved and self.virtual_stages == 1:
            raise ValueError(
                "virtual_stages: found 1; allowed: at least 2 for schedule interleaved"
            )
        if self.schedule == "zbv" and stages > 1:
            if "virtual_stages" not in self.model_fields_set:
                self.__dict__["virtual_stages"] = 2
            if self.virtual_stages != 2:
                raise ValueError(
                    f"virtual_stages: found {self.virtual_stages}; allowed: 2 for schedule zbv"
                )
        elif self.virtual_stages > 1 and not interleaved:
            of = f"schedule {self.schedule}" if stages > 1 else "a single stage"
            raise ValueError(f"virtual_stages: found {self.virtual_stages}; allowed: 1 for {of}")
        if interleaved and self.microbatches % stages:
            raise ValueError(
                f"microbatches: found {self.microbatches}; allowed: a multiple of {stages}, the "
                f"stages of {self.layout}, for schedule interleaved"
            )
        several = interleaved or self.split_backward
        if several and (self.engine == "torchgpipe" or self.device == "gpu"):
            raise ValueError(
                f"schedule: found {self.schedule!r}; allowed: gpipe for engine {self.engine} on "
                f"{self.device}, {self.schedule} for engines native and pipelining on cpu"
            )
        if several and self.engine == "pipelining" and self.layout.replicas > 1:
            raise ValueError(
                f"layout: found {str(self.layout)!r}; allowed: pp<S> for schedule {self.schedule} "
                "of engine pipelining"
            )
        self._check_full_pipeline()

    def _check_full_pipeline(self) -> None:
        """Raise ValueError where torch's 1F1B or ZB-H1 has too few micro-batches; ours takes any
        number."""
        if self.engine != "pipelining":
            return
        stages, of = self.layout.stages, f"schedule {self.schedule} of engine pipelining"
        if self.schedule == "1f1b" and self.microbatches < stages:
            raise ValueError(
                f"microbatches: found {self.microbatches}; allowed: at least {stages}, one a stage "
                f"of {self.layout}, for {of}"
            )
        in_rounds = self.microbatches % stages == 0 or self.microbatches < 2 * stages
        if self.schedule == "zero-bubble" and not in_rounds:
            raise ValueError(
                f"microbatches: found {self.microbatches}; allowed: a multiple of {stages}, the "
                f"stages of {self.layout}, or fewer than {2 * stages}, for {of}"
            )

    def _check_engine(self) -> None:
        """Raise ValueError for what an engine cannot do; a single stage needs none."""
        several = self.layout.stages > 1
        if several and self.engine == "torchgpipe" and self.schedule != "gpipe":
            raise ValueError(
                f"schedule: found {self.schedule!r}; allowed: gpipe for engine torchgpipe"
            )
        if several and self.engine == "pipelining" and self.activation_checkpointing != "never":
            raise ValueError(
                f"activation_checkpointing: found {self.activation_checkpointing!r}; allowed: "
                "never for engine pipelining"
            )
        if self.bucket_mib is not None and self.layout.replicas > 1:
            self._check_buckets()
        if self.balance in ("time", "size") and self.engine != "torchgpipe":
            raise ValueError(
                f"balance: found {self.balance!r}; allowed: cost, profile or counts for engine "
                f"{self.engine}, time and size are measured by torchgpipe"
            )
        if self.balance == "size" and self.device == "cpu":
            raise ValueError(
                "balance: found 'size'; allowed: time, cost, profile or counts on a CPU, "
                "torchgpipe measures the memory of GPUs alone"
            )

    def _check_buckets(self) -> None:
        """Raise ValueError for buckets of gradients, which only engine native on a CPU has."""
        engine = self.engine if self.layout.stages > 1 else "native"
        if (engine, self.device) != ("native", "cpu"):
            where = "on gpu" if engine == "native" else f"for engine {engine}"
            raise ValueError(f"bucket_mib: found {self.bucket_mib}; allowed: none {where}")

    def _check_sampled(self) -> None:
        """Raise ValueError for settings of sampling that do not fit; fan-outs are checked with the
        layers."""
        assert self.sampling is not None
        if self.batch_size is None:
            raise ValueError("batch_size: found none; allowed: nodes a mini-batch and replica")
        if self.microbatches > self.batch_size:
            raise ValueError(
                f"microbatches: found {self.microbatches}; allowed: at most batch_size "
                f"{self.batch_size}, a node of each"
            )
        facts, replicas = self.data.facts(), self.layout.replicas
        most = facts.train or facts.nodes
        # The number of links is known only from the graph.
        if self.task is None and self.batch_size * replicas > most:
            which = f"{most} nodes to train on" if facts.train else f"{most} nodes"
            raise ValueError(
                f"batch_size: found {self.batch_size} x {replicas} replicas; allowed: at most the "
                f"{which} of {self.data.name}"
            )
        alone = (self.sampling.sampler, self.engine, self.device) == ("ours", "native", "cpu")
        if self.layout.stages > 1 and not alone:
            raise ValueError(
                f"layout: found {str(self.layout)!r}; allowed: seq or dp<R> with sampling, and "
                "stages with sampler ours, engine native, device cpu: every stage draws what the "
                "others draw"
            )
        if self.chunks != "contiguous" or self.rebuild != "once":
            key = "rebuild" if self.chunks == "contiguous" else "chunks"
            raise ValueError(
                f"{key}: found {getattr(self, key)!r}; allowed: none with sampling, which chooses "
                "edges itself"
            )

    def _check_graphs(self) -> None:
        """Raise ValueError for settings that do not fit many small graphs."""
        if self.sampling is not None:
            raise ValueError("sampling: found a mapping; allowed: none for many small graphs")
        if self.chunks != "contiguous":
            raise ValueError(
                f"chunks: found {self.chunks!r}; allowed: none for many small graphs, none of "
                "which is cut"
            )
        if self.batch_size is None:
            raise ValueError("batch_size: found none; allowed: graphs a mini-batch and replica")
        if self.microbatches > self.batch_size:
            raise ValueError(
                f"microbatches: found {self.microbatches}; allowed: at most batch_size "
                f"{self.batch_size}, a graph of each"
            )
        train, replicas = self.data.facts().train, self.layout.replicas
        if self.batch_size * replicas > train:
            raise ValueError(
                f"batch_size: found {self.batch_size} x {replicas} replicas; allowed: at most the "
                f"{train} graphs to train on of {self.data.name}"
            )
        if self.layout.stages > 1 and (self.engine, self.device) != ("native", "cpu"):
            raise ValueError(
                f"layout: found {str(self.layout)!r}; allowed: seq or dp<R> with many small "
                "graphs, and stages with engine native, device cpu: micro-batches have other "
                "rows each"
            )

    def _check_links(self) -> None:
        if self.sampling is None or self.sampling.sampler != "ours":
            found = "no sampling" if self.sampling is None else f"sampler {self.sampling.sampler}"
            raise ValueError(
                f"task: found 'links' and {found}; allowed: sampling with sampler ours, which "
                "leaves out the links that a step predicts"
            )
        if self.sampling.inductive:
            raise ValueError(
                "sampling.inductive: found true; allowed: false with task links, which keeps the "
                "links that are scored from all layers, but no nodes"
            )
        if self.sampling.evaluation != "whole":
            raise ValueError("sampling.evaluation: found 'sampled'; allowed: whole with task links")
        if isinstance(self.model, CustomModel):
            raise ValueError(
                f"task: found 'links' and model {self.model.name!r}; allowed: a built-in model"
            )

    def _check_images(self) -> None:
        if self.sampling is not None:
            raise ValueError("sampling: found a mapping; allowed: none for images")
        if self.batch_size is None:
            raise ValueError("batch_size: found none; allowed: images a mini-batch and replica")
        if self.batch_size % self.microbatches:
            raise ValueError(
                f"microbatches: found {self.microbatches}; "
                f"allowed: a divisor of batch_size {self.batch_size}"
            )
        facts = self.data.facts()
        available = min(facts.train, facts.test) if self.test_steps else facts.train
        if self.batch_size * self.layout.replicas > available:
            raise ValueError(
                f"batch_size: found {self.batch_size} x {self.layout.replicas} replicas; "
                f"allowed: at most the {available} images of {self.data.name}"
            )

    @property
    def facts(self) -> Facts:
        """Sizes of the data, as the model is built for them: of links its outputs' width."""
        facts = self.data.facts()
        if self.task is None:
            return facts
        return dataclasses.replace(facts, classes=self.task.embedding)

    @property
    def outputs(self) -> OutputKind:
        """What the last layer gives."""
        return self.model.loaded.outputs if self.task is None else "embeddings"

    @property
    def process_layout(self) -> Layout:
        """How the processes are laid out: under torchgpipe one holds all stages of a replica."""
        return processes_of(self.layout, self.engine)

    @property
    def stages_per_process(self) -> int:
        return self.layout.stages // self.process_layout.stages

    @property
    def split_backward(self) -> bool:
        """Whether stages compute gradients of weights apart from those of inputs."""
        return self.schedule in SPLIT_BACKWARD and self.layout.stages > 1

    def profiled_steps(self, start: int) -> int:
        """How many steps after warm-up are profiled, in an attempt that begins at step `start`."""
        measured = max(0, self.train_steps - start - self.warmup_steps)
        return min(self.profile_steps, measured // 4)

    @property
    def loss_stage(self) -> int:
        """Which stage of `process_layout` holds the model's last layers, and computes the loss."""
        return loss_stage(self.schedule, self.process_layout.stages)

    @property
    def model_parts(self) -> int:
        """Into how many virtual stages the model is cut."""
        return self.layout.stages * self.virtual_stages

    @property
    def total_chunks(self) -> int:
        """Chunks of the graph over all replicas."""
        return self.microbatches * self.layout.replicas

    @property
    def epochs_end_unevenly(self) -> bool:
        """Whether an epoch's last mini-batch has what is left, and each is made within its step."""
        return self.sampling is not None or self.data.facts().kind == "graphs"

    @property
    def whole_graph(self) -> Experiment:
        """What a sampled run evaluates: the whole graph in as many chunks, without losing edges."""
        update = {"sampling": None, "batch_size": None, "chunks": "halo", "task": None}
        return self.model_copy(update=update)

    @property
    def evaluates_sampled(self) -> bool:
        """Whether evaluations take drawn neighbours, not all."""
        return self.sampling is not None and self.sampling.evaluation == "sampled"

    def content(self) -> dict[str, Any]:
        """The experiment as plain data, defaults left out, so that new fields keep old ids."""
        return self.model_dump(mode="json", exclude_defaults=True) | {
            "model": self.model.content(),
            "data": self.data.content(),
            **({"optimizer": self.optimizer.content()} if self.optimizer != Adam() else {}),
            **self._task_content(),
        }

    def _task_content(self) -> dict[str, Any]:
        """The task's settings, and its name although that is a default."""
        if self.task is None:
            return {}
        settings = self.task.model_dump(mode="json", exclude_defaults=True)
        return {"task": {"name": self.task.name, **settings}}

    @cached_property
    def id(self) -> str:
        """A readable name of the main settings, and a hash of all content."""
        canonical = json.dumps([SPEC_VERSION, self.content()], sort_keys=True)
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:10]
        return (
            f"{self.model.label}-{self.data.label}-{self.layout}-m{self.microbatches}"
            f"-s{self.seed}-r{self.repeat}-{digest}"
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A changed copy, with an id of its own."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("id", None)
        return copied
