"""What one experiment is: typed, documented under each field, checked when built.

Everything here is content: two experiments that are equal measure the same thing, and share a
cell id. Where the data lie, or which partition ran it, is not content and stands elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from gnnhpc.core.errors import InputError
from gnnhpc.core.facts import CIFAR10, GRAPHS, Facts
from gnnhpc.core.layout import ALLOWED as LAYOUTS_ALLOWED
from gnnhpc.core.layout import Layout

SPEC_VERSION = 1


class Strict(BaseModel):
    """Unknown keys are errors, values never change after checking."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


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
Implementation = Literal["fused", "reference"]
# YAML's `yes` must not count as 1.
Whole = Annotated[int, Field(strict=True)]
Positive = Annotated[Whole, Field(ge=1)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class VigConfig(Strict):
    """Vision GNN over a pixel grid, as J. Raffi's study builds it."""

    name: Literal["vig"] = "vig"
    blocks: Positive = 8
    """Grapher + FFN pairs."""
    grapher_width: Positive = 256
    """Hidden channels of the Grapher."""
    ffn_width: Positive = 512
    """Hidden channels of the FFN."""
    readout_width: Positive = 1024
    """Hidden channels of the readout."""
    implementation: Implementation = "fused"
    """`reference` is PyG's GraphConv; `fused` the same function without its intermediates."""


class GatConfig(Strict):
    """Graph attention network of Velickovic et al. 2018, as Dearing & Wang train it."""

    name: Literal["gat"] = "gat"
    layers: Annotated[Whole, Field(ge=2)] = 2
    """Attention layers; each is three modules: dropout, attention, activation."""
    heads: Positive = 8
    hidden: Positive = 8
    """Channels a head in every layer but the last."""
    dropout: Probability = 0.6
    """Dropout on features and on attention coefficients."""
    implementation: Implementation = "fused"
    """`reference` is PyG's GATConv; `fused` the same function over sorted segments."""


ModelConfig = Annotated[VigConfig | GatConfig, Field(discriminator="name")]


class Cifar10(Strict):
    """CIFAR-10 as published; every file found under the data root is used."""

    name: Literal["cifar10"] = "cifar10"

    def facts(self) -> Facts:
        return CIFAR10


class SyntheticCifar10(Strict):
    """Images whose class shows in colour and texture, so that losses can fall."""

    name: Literal["synthetic-cifar10"] = "synthetic-cifar10"
    train: Positive = 2_000
    test: Positive = 400
    image_size: Annotated[Whole, Field(ge=2)] = 32
    classes: Annotated[Whole, Field(ge=2)] = 10

    def facts(self) -> Facts:
        return Facts(
            "images",
            3,
            self.classes,
            image_size=self.image_size,
            train=self.train,
            test=self.test,
        )


class CitationGraph(Strict):
    """A citation, co-purchase or co-author graph, read by PyG's own class."""

    name: Literal["cora", "citeseer", "pubmed", "photo", "physics", "reddit"] = "cora"
    features: Literal["real", "made"] = "real"
    """`made` keeps graph, labels and split and makes features up: for timing, not accuracy."""

    def facts(self) -> Facts:
        return GRAPHS[self.name]


class SyntheticCitation(Strict):
    """A graph of communities with sparse features that tell the class only with neighbours."""

    name: Literal["synthetic-citation"] = "synthetic-citation"
    nodes: Annotated[Whole, Field(ge=10)] = 2_000
    edges: Annotated[Whole, Field(ge=10)] = 8_000
    """Directed edges, about."""
    features: Annotated[Whole, Field(ge=8)] = 256
    classes: Annotated[Whole, Field(ge=2)] = 7

    def facts(self) -> Facts:
        return Facts("graph", self.features, self.classes, nodes=self.nodes, edges=self.edges)


DataConfig = Annotated[
    Cifar10 | SyntheticCifar10 | CitationGraph | SyntheticCitation, Field(discriminator="name")
]


class OptimizerConfig(Strict):
    """Adam for every model of the three studies."""

    name: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 0.0


class Experiment(Strict):
    """One cell: everything that decides what is computed, and nothing else."""

    model: ModelConfig
    data: DataConfig
    layout: LayoutField = Layout()
    microbatches: Positive = 1
    """Micro-batches a mini-batch and replica; for graphs, chunks a replica."""
    schedule: Literal["gpipe", "1f1b"] = "gpipe"
    engine: Literal["native", "pipelining"] = "native"
    """What runs several stages: our own loop over the schedule, or torch.distributed.pipelining."""
    batch_size: Positive | None = None
    """Images a mini-batch and replica; none for graphs, whose mini-batch is the whole graph."""
    train_steps: Positive = 10
    """Mini-batches trained."""
    test_steps: Annotated[Whole, Field(ge=0)] = 2
    """Mini-batches evaluated at each evaluation."""
    test_every: Positive | None = None
    """Training steps between evaluations; none evaluates once, at the end."""
    warmup_steps: Annotated[Whole, Field(ge=0)] = 1
    """Steps of each phase marked as warm-up in the records."""
    optimizer: OptimizerConfig = OptimizerConfig()
    chunks: Literal["contiguous", "clustered", "halo"] = "contiguous"
    """How a graph becomes micro-batches."""
    batchnorm: Literal["micro", "deferred"] = "micro"
    """Running statistics a micro-batch at a time, or once a mini-batch."""
    balance: tuple[Positive, ...] | Literal["cost", "profile"] = "cost"
    """Layers a stage: dealt by estimated or measured cost, or given."""
    dtype: Literal["float32", "float64"] = "float32"
    device: Literal["cpu", "gpu"] = "cpu"
    seed: Annotated[Whole, Field(ge=0)] = 0
    repeat: Annotated[Whole, Field(ge=0)] = 0
    """Distinguishes repeated measurements of the same thing; seeds nothing."""
    spans: bool = False
    """Write a span for each micro-batch, for the timeline."""
    checkpoint_every: Positive | None = None
    """Training steps between checkpoints; none checkpoints on a signal only."""

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        kind = self.data.facts().kind
        needs = "images" if self.model.name == "vig" else "graph"
        if kind != needs:
            raise ValueError(
                f"data: found {self.data.name!r}; allowed: {needs} data for model {self.model.name}"
            )
        if kind == "images":
            self._check_images()
        elif self.batch_size is not None:
            raise ValueError(
                f"batch_size: found {self.batch_size}; allowed: none, a graph is one mini-batch"
            )
        elif self.total_chunks > self.data.facts().nodes:
            raise ValueError(
                f"microbatches: found {self.microbatches}; allowed: at most one chunk a node"
            )
        self._check_schedule()
        if isinstance(self.balance, tuple) and len(self.balance) != self.layout.stages:
            raise ValueError(
                f"balance: found {list(self.balance)}; allowed: one count for each of the "
                f"{self.layout.stages} stages of {self.layout}"
            )
        return self

    def _check_schedule(self) -> None:
        """torch's 1F1B wants its pipeline full; ours does with less."""
        wanted = self.layout.stages
        if (self.schedule, self.engine) != ("1f1b", "pipelining") or self.microbatches >= wanted:
            return
        raise ValueError(
            f"microbatches: found {self.microbatches}; allowed: at least {wanted}, one a stage of "
            f"{self.layout}, for schedule 1f1b of engine pipelining"
        )

    def _check_images(self) -> None:
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
    def total_chunks(self) -> int:
        """Chunks of the graph over all replicas."""
        return self.microbatches * self.layout.replicas

    def content(self) -> dict[str, Any]:
        """The experiment as plain data, defaults left out, so that new fields keep old ids."""
        return self.model_dump(mode="json", exclude_defaults=True) | {
            "model": {"name": self.model.name}
            | self.model.model_dump(mode="json", exclude_defaults=True),
            "data": {"name": self.data.name}
            | self.data.model_dump(mode="json", exclude_defaults=True),
        }

    @cached_property
    def id(self) -> str:
        """A name that says what the cell is, with a hash that says the rest."""
        canonical = json.dumps([SPEC_VERSION, self.content()], sort_keys=True)
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:10]
        return (
            f"{self.model.name}-{self.data.name}-{self.layout}-m{self.microbatches}"
            f"-s{self.seed}-r{self.repeat}-{digest}"
        )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A changed copy has an id of its own: what was computed once is not copied along."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("id", None)
        return copied


def explain(error: ValidationError, where: object) -> InputError:
    """The first complaint of pydantic as one line: file, key, what was found, what is allowed."""
    complaints = error.errors(include_url=False)
    first = complaints[0]
    key = _key(first)
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "value_error":
        return _as_line(where, key, message)
    if first["type"] == "extra_forbidden":
        allowed = _keys_beside(first["loc"]) if error.title == Experiment.__name__ else None
        return InputError(where, key, "an unknown key", allowed or "the documented keys")
    if first["type"] == "missing":
        return InputError(where, key, "nothing", "a value, this key is required")
    # Each choice of a union complains for itself: what any of them allows is allowed.
    choices = [_allowed(other) for other in complaints if _key(other) == key]
    allowed = " or ".join(dict.fromkeys(choices))
    if first["type"].startswith("union_tag"):
        found = first["ctx"].get("tag")
        key = f"{key}.name" if key else "name"
        return InputError(where, key, repr(found) if found else "nothing", allowed)
    return InputError(where, key, _short(first["input"]), allowed)


# Of pydantic's kinds of complaint: what would have been right, with its context filled in.
_RIGHT = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "text of at least {min_length} character",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "literal_error": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "less_than": "less than {lt}",
    "too_short": "at least {min_length} of them",
    "union_tag_invalid": "{expected_tags}",
    "union_tag_not_found": "the name of one",
}


def _allowed(complaint: ErrorDetails) -> str:
    right = _RIGHT.get(complaint["type"])
    return right.format(**complaint.get("ctx", {})) if right else complaint["msg"]


def _key(complaint: ErrorDetails) -> str | None:
    return ".".join(str(part) for part in complaint["loc"] if not _is_tag(part)) or None


def _short(value: object) -> str:
    text = repr(value)
    return "nothing" if value is None else text if len(text) <= 80 else text[:77] + "..."


def _keys_beside(location: tuple[int | str, ...]) -> str | None:
    """The keys of an experiment that may stand where `location` ends."""
    known: type[BaseModel] = Experiment
    named: dict[str, type[BaseModel]] = {
        "optimizer": OptimizerConfig,
        "vig": VigConfig,
        "gat": GatConfig,
    }
    named |= {"cifar10": Cifar10, "synthetic-cifar10": SyntheticCifar10}
    named |= {"synthetic-citation": SyntheticCitation} | dict.fromkeys(GRAPHS, CitationGraph)
    for part in location[:-1]:
        known = named.get(str(part), known)
    return ", ".join(sorted(known.model_fields))


def _as_line(where: object, key: str | None, message: str) -> InputError:
    prefix, _, rest = message.partition("found ")
    inner = prefix.strip().rstrip(":")
    found, _, allowed = rest.partition("; allowed: ")
    full = ".".join(part for part in (key, inner) if part) or None
    return InputError(where, full, found or None, allowed or None)


def _is_tag(part: int | str) -> bool:
    names = {"vig", "gat", "cifar10", "synthetic-cifar10", "synthetic-citation", *GRAPHS}
    # A union of plain types names its choices, such as literal['cost','profile'].
    return isinstance(part, str) and (part in names or "[" in part)
