"""The protocol of a model: its settings, the data it takes, its layers on paper, how each is built.

Built-in and custom models follow the same protocol. This file does not import torch: a model
imports what builds its layers inside `build`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict

from gnnhpc.core.dataset_sizes import Facts, Kind
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.core.settings import Strict

if TYPE_CHECKING:
    import torch
    from torch import nn

    from gnnhpc.graphs.blocks import GraphChunk
    from gnnhpc.kernels.dropout_mask import Masks

Outputs = Literal["logits", "log_probabilities"]
OutputKind = Outputs | Literal["embeddings"]
"""What a run's model returns; in link prediction, embeddings of nodes."""
BatchNormMode = Literal["micro", "deferred"]


@dataclass(frozen=True)
class BuildOptions:
    """Settings of the experiment that layers are built with, besides the model's own settings."""

    dtype: torch.dtype
    batchnorm: BatchNormMode = "micro"


@dataclass(frozen=True)
class Context:
    """What a layer needs besides its input: the context of one micro-batch in one step."""

    microbatch: int = 0
    """The micro-batch's number within the mini-batch, from 0."""
    step: int = 0
    """The training step; dropout masks are computed from it."""
    seed: int = 0
    """The experiment's seed."""
    graph: GraphChunk | None = None
    """The chunk of a graph; None for images."""
    masks: Masks | None = None
    """Where dropout masks come from in a step that is captured and replayed, and in a reference."""

    @property
    def chunk(self) -> GraphChunk:
        """The chunk of a graph that a layer works on; raises ValueError for images."""
        if self.graph is None:
            raise ValueError("graph layers need a context with a chunk of a graph")
        return self.graph


class Model(Strict):
    """A model: its settings are fields, its layers are methods. Custom models derive from it.

    A layer is a torch module whose `forward(x, context)` maps one micro-batch's activation
    [rows, *inputs] to [rows, *shape]; `context` is a `Context`.
    """

    # pydantic would read the source of every user's class for its docstrings.
    model_config = ConfigDict(use_attribute_docstrings=False)

    takes: ClassVar[tuple[Kind, ...]] = ("graph",)
    """Kinds of data this model works on."""
    outputs: ClassVar[Outputs] = "logits"
    """What the last layer returns for each row, as [classes] numbers."""
    uses_batchnorm: ClassVar[bool] = True
    """Whether the experiment's `batchnorm` changes what the layers compute."""
    title: ClassVar[str] = ""
    """The name in figures; the label is used where it is empty."""
    sparse_inputs: ClassVar[bool] = False
    """Whether the first layer accepts `SparseRows` where features are stored as sparse rows."""
    indexed_inputs: ClassVar[bool] = False
    """Whether the first layer accepts dense features as `IndexedRows`."""
    uses_edge_weight: ClassVar[bool] = False
    """Whether the layers use the weights of a graph's edges, `Block.edge_weight`; a weighted graph
    needs that."""

    name: str

    @property
    def label(self) -> str:
        """The model's name as file names, tables and figures show it."""
        return self.name

    @property
    def loaded(self) -> Model:
        """The model itself; of a custom model, an instance of the class in its file."""
        return self

    def planned(self, folder: Path) -> Model:
        """These settings with what planning adds to them; `folder` is the folder of the spec.

        Raises InputError for a model that cannot be found or loaded.
        """
        return self

    def load(self, folders: Sequence[Path]) -> None:
        """Load a custom model from `folders` or Python's path; other models need no loading."""

    def outline(self, facts: Facts) -> Sequence[LayerSpec]:
        """The layers for data of these sizes, first to last; it must not need torch."""
        raise NotImplementedError(f"{type(self).__name__} has no outline(self, facts)")

    def misfit(self) -> str | None:
        """Why these settings cannot be computed; None if they can.

        The text is worded as errors of a spec are: "key: found ...; allowed: ...".
        """
        return None

    def misfit_of_data(self, kind: Kind) -> str | None:
        """Why a setting has no meaning for data of this kind; None if all settings have one.

        The text is worded as that of `misfit`.
        """
        return None

    def check_here(self, *, on_gpu: bool = False) -> None:
        """Raise InputError where this machine lacks a library that these settings need.

        `on_gpu` also asks the library whether it computes on GPUs, which imports it.
        """

    def build(self, layer: LayerSpec, options: BuildOptions) -> nn.Module:
        """Build one layer with initial parameters from torch's global generator."""
        raise NotImplementedError(f"{type(self).__name__} has no build(self, layer, options)")

    def implementation_note(self, dtype: torch.dtype, device: torch.device) -> str:
        """Which code computes the layers here, for the record of a run."""
        return "custom"

    def content(self) -> dict[str, Any]:
        """The name, and settings that are not at their defaults; a cell's id is made from it."""
        return {"name": self.name} | self.model_dump(mode="json", exclude_defaults=True)
