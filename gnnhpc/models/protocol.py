"""What a model is: its settings, the data it takes, its layers on paper, how each is built.

Built-in models and a user's own follow the same protocol. Free of torch: a model's own code imports
what builds its layers inside `build`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict

from gnnhpc.core.facts import Facts, Kind
from gnnhpc.core.layer_specs import LayerSpec
from gnnhpc.core.settings import Strict

if TYPE_CHECKING:
    import torch
    from torch import nn

Outputs = Literal["logits", "log_probabilities"]
OutputKind = Outputs | Literal["embeddings"]
"""Of a run: where links are learnt, a model's outputs are embeddings of nodes."""
BatchNormMode = Literal["micro", "deferred"]


@dataclass(frozen=True)
class BuildOptions:
    """Settings of the experiment that layers are built with, besides the model's own."""

    dtype: torch.dtype
    batchnorm: BatchNormMode = "micro"


class Model(Strict):
    """A model: its settings as fields, and its layers as methods. Own models derive from it.

    A layer is a torch module whose `forward(x, context)` maps one micro-batch's activation
    [rows, *inputs] to [rows, *shape]; `context` is a `gnnhpc.models.context.Context`.
    """

    # pydantic would read the source of every user's class for its docstrings.
    model_config = ConfigDict(use_attribute_docstrings=False)

    takes: ClassVar[tuple[Kind, ...]] = ("graph",)
    """Kinds of data this model works on."""
    outputs: ClassVar[Outputs] = "logits"
    """What the last layer gives a row, [classes] numbers."""
    uses_batchnorm: ClassVar[bool] = True
    """Whether the experiment's `batchnorm` means anything to the layers."""
    title: ClassVar[str] = ""
    """As figures show it; the label where there is none."""
    sparse_inputs: ClassVar[bool] = False
    """Whether the first layer takes features as `SparseRows` where they are stored so."""

    indexed_inputs: ClassVar[bool] = False
    """Whether the first layer takes dense features as `IndexedRows`."""

    name: str

    @property
    def reads_in_place(self) -> bool:
        """Whether dense features are given to these settings' first layer without a copy."""
        return self.indexed_inputs and getattr(self, "implementation", "fused") == "fused"

    @property
    def label(self) -> str:
        """The model's name as file names, tables and figures show it."""
        return self.name

    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of data this model works on."""
        return self.takes

    @property
    def loaded(self) -> Model:
        """The model itself; for a user's own model, the class in its file."""
        return self

    def planned(self, folder: Path) -> Model:
        """These settings with what planning adds to them; `folder` is that of the spec.

        Raises InputError for a model that cannot be found or loaded.
        """
        return self

    def load(self, folders: Sequence[Path]) -> None:
        """Load a user's own model, from `folders` or Python's path; others need no loading."""

    def outline(self, facts: Facts) -> Sequence[LayerSpec]:
        """The layers on data of these sizes, first to last; must not need torch."""
        raise NotImplementedError(f"{type(self).__name__} has no outline(self, facts)")

    def misfit(self, chunks: str) -> str | None:
        """Why these settings cannot compute graphs cut in this way; None if they can.

        Worded as the spec's errors are: "key: found ...; allowed: ...".
        """
        return None

    def misfit_of_data(self, kind: Kind) -> str | None:
        """Why these settings mean nothing to data of this kind; None if all of them do.

        Worded as `misfit` is.
        """
        return None

    def check_here(self) -> None:
        """Raises InputError where this machine lacks a library that these settings ask for."""

    def build(self, layer: LayerSpec, options: BuildOptions) -> nn.Module:
        """One layer, its parameters drawn from torch's global generator."""
        raise NotImplementedError(f"{type(self).__name__} has no build(self, layer, options)")

    def implementation_note(self, dtype: torch.dtype, device: torch.device) -> str:
        """Which code computes the layers here, for the record of a run."""
        return "own"

    def content(self) -> dict[str, Any]:
        """The name, and settings that are not at their defaults: what a cell's id is made of."""
        return {"name": self.name} | self.model_dump(mode="json", exclude_defaults=True)
