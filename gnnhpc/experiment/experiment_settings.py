"""The settings of an experiment, each documented under its field, and what follows from them.

Which of them fit together is in `gnnhpc.experiment.capabilities`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, SerializeAsAny

from gnnhpc.core.dataset_sizes import Facts, Kind
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import ALLOWED as LAYOUTS_ALLOWED
from gnnhpc.core.layout import Layout, processes_of
from gnnhpc.core.schedules import SPLIT_BACKWARD, Recomputation, ScheduleName, loss_stage
from gnnhpc.core.settings import Positive, Seed, Steps, Strict, Whole, parse_named
from gnnhpc.data.data_settings import Data
from gnnhpc.data.registry import parse_data
from gnnhpc.experiment.sampling import Links, Sampling
from gnnhpc.models.model import Model, OutputKind
from gnnhpc.models.model_registry import parse_model
from gnnhpc.optimizers.optimizer import OPTIMIZERS, Adam, OptimizerConfig


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


def _parse_optimizer(value: object) -> object:
    if isinstance(value, Mapping):
        value = {"name": "adam", **value}
    return parse_named(value, OPTIMIZERS.get, ", ".join(OPTIMIZERS))


OptimizerField = Annotated[SerializeAsAny[OptimizerConfig], BeforeValidator(_parse_optimizer)]
ModelField = Annotated[SerializeAsAny[Model], BeforeValidator(parse_model)]
DataField = Annotated[SerializeAsAny[Data], BeforeValidator(parse_data)]


class ExperimentSettings(Strict):
    """Everything that decides what is computed, and nothing else."""

    model: ModelField
    """A model's name, or its name and settings, such as `{name: gcn, layers: 3}`; `file:Class` is a
    custom model."""
    data: DataField
    """A data set's name, or its name and settings, such as
    `{name: synthetic-citation, nodes: 2000}`; `name: file` is a custom graph."""
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
    activation_checkpointing: Recomputation = "never"
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
    """Mini-batches evaluated at each evaluation, by default 2, or one more than warmup_steps."""
    test_every: Annotated[Steps, Field(ge=1)] | None = None
    """Training steps between evaluations; none evaluates once, at the end."""
    warmup_steps: Annotated[Steps, Field(ge=0)] = 1
    """First steps of each phase that averages leave out."""
    optimizer: OptimizerField = Adam()
    """The optimizer and its settings, such as `{name: sgd, lr: 0.1}`; adam trains every model of
    the three studies."""
    chunks: Literal["contiguous", "clustered", "halo"] = "contiguous"
    """How a graph becomes micro-batches: in ranges of nodes or in METIS clusters, which both lose
    the edges between chunks, or with a halo, which keeps all edges. Where a graph is cut, the
    default is halo, or contiguous with rebuild: layer."""
    rebuild: Literal["once", "layer"] = "once"
    """When a chunk's edges are cut out of the graph: once at the start, or in each layer of each
    step on the CPU, as Dearing & Wang timed it."""
    features: Literal["auto", "dense", "stored"] = "auto"
    """How layers compute with sparse features of nodes: written out as dense rows, or as they are
    stored. auto takes dense rows on a GPU where one value in twenty or more is stored. Training is
    the same to rounding. Features whose data are dense stay dense."""
    sampling: Sampling | None = None
    """How mini-batches of a graph are sampled; none takes the whole graph in every step."""
    task: Links | None = None
    """The task: none classifies images, nodes or graphs; `{name: links}` predicts links of a
    sampled graph."""
    batchnorm: Literal["micro", "deferred"] = "micro"
    """Whether running statistics are updated a micro-batch at a time, or once a mini-batch."""
    balance: tuple[Positive, ...] | Literal["cost", "profile"] = "cost"
    """Layers a stage: by estimated cost, by measured cost (`profile`), or as counts, such as
    `[1, 2]`."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of parameters and activations."""
    device: Literal["cpu", "gpu"] = "cpu"
    """What the ranks compute on."""
    cuda_graph: Literal["auto", "off"] = "auto"
    """Whether steps on a GPU are captured as CUDA graphs and replayed, with the same bits: `auto`
    captures steps on a whole graph, on halo chunks and on images; of a pipeline each stage's
    forward and backward of a micro-batch. Sampled mini-batches, engines of libraries, custom
    models, recomputed activations, profiled steps, and layers that wait for the device are computed
    as always, and records say why."""
    compile: Literal["off", "default", "reduce-overhead"] = "off"
    """Whether `torch.compile` compiles the layers of implementation pyg and of custom models, and
    in which mode: reduce-overhead records CUDA graphs of its own on a GPU, and equals default on a
    CPU. Layers are compiled before the first step, as a part of start-up; a step that compiles
    again is recorded."""
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

    @property
    def data_facts(self) -> Facts:
        """Sizes of the data."""
        return self.data.facts()

    @property
    def kind(self) -> Kind:
        """Whether the data are images, a graph or many graphs."""
        return self.data_facts.kind

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

    @property
    def loss_stage(self) -> int:
        """Which stage of `process_layout` holds the model's last layers, and computes the loss."""
        return loss_stage(self.schedule, self.process_layout.stages)

    @property
    def total_virtual_stages(self) -> int:
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
    def evaluates_sampled(self) -> bool:
        """Whether evaluations sample neighbours, and do not take all."""
        return self.sampling is not None and self.sampling.evaluation == "sampled"
