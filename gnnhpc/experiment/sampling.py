"""Settings of sampled mini-batches, and of links as what they learn.

Nodes are sampled, and neighbours for them, layer by layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gnnhpc.core.settings import Positive, Strict, Whole

SamplerName = Literal["ours", "pyg", "dgl"]
Semantics = Literal["resample", "once"]
SEMANTICS_OF: dict[SamplerName, tuple[Semantics, ...]] = {
    "ours": ("resample", "once"),
    "pyg": ("once",),
    "dgl": ("resample",),
}
"""What each sampler can do, its default first."""
MOST_NEIGHBOURS = 2**31 - 1
"""A fan-out that takes all neighbours of any node; samplers count them in 32 bits."""
EVALUATED_STEP = 2**32 - 1
"""The step number that samples an evaluation's neighbours; no training step has it."""

Fanout = Annotated[Positive, Field(le=MOST_NEIGHBOURS)]
Share = Annotated[float, Field(gt=0.0, lt=1.0)]


class Sampling(Strict):
    """Settings of sampled mini-batches; `batch_size` is then nodes a mini-batch and replica."""

    fanouts: Annotated[tuple[Fanout, ...], Field(min_length=1)]
    """The most neighbours to sample for a node: one number for each layer that uses neighbours,
    beginning with the last layer, such as `[25, 10]`."""
    sampler: SamplerName = "ours"
    """The sampler: this project's, PyG's NeighborLoader or DGL's DataLoader."""
    semantics: Semantics = "resample"
    """`resample` samples a node's neighbours anew in each layer, as DGL does; `once` keeps them, as
    PyG does."""
    workers: Annotated[Whole, Field(ge=0)] = 1
    """Threads that sample in advance (processes for PyG and DGL); 0 samples within the step. Where
    the graph lies on a GPU, one of them samples there, beside the steps."""
    fused: bool = True
    """For DGL: whether its sampler picks and renumbers rows in one call, which is DGL's default."""
    inductive: bool = False
    """Whether training uses the edges between training nodes alone, and evaluation all edges
    (Hamilton et al. 2017, section 4)."""

    evaluation: Literal["whole", "sampled"] = "whole"
    """Whether an evaluation uses all neighbours, or samples as many as training does, the same in
    each evaluation, for all nodes with valid targets in one mini-batch."""

    @model_validator(mode="before")
    @classmethod
    def _default_semantics(cls, raw: Any) -> Any:
        """Set the sampler's default, so that a cell has one id whether it is written or not."""
        if isinstance(raw, Mapping) and "semantics" not in raw and raw.get("sampler") == "pyg":
            return {**raw, "semantics": "once"}
        return raw

    @model_validator(mode="after")
    def _fits(self) -> Sampling:
        allowed = SEMANTICS_OF[self.sampler]
        if self.semantics not in allowed:
            raise ValueError(
                f"semantics: found {self.semantics!r}; allowed: {' or '.join(allowed)} for "
                f"sampler {self.sampler}"
            )
        if not self.fused and self.sampler != "dgl":
            raise ValueError("fused: found false; allowed: true, or sampler dgl")
        if self.evaluation == "sampled" and self.sampler != "ours":
            raise ValueError(
                f"evaluation: found 'sampled'; allowed: whole for sampler {self.sampler}"
            )
        # A node reached first in another layer would draw others: not the same in parts of a batch.
        if (self.sampler, self.semantics) == ("ours", "once") and len(set(self.fanouts)) > 1:
            raise ValueError(
                f"fanouts: found {list(self.fanouts)}; allowed: the same number for all layers "
                "with semantics once of sampler ours"
            )
        return self


class Links(Strict):
    """Settings of link prediction; `batch_size` is then links a mini-batch and replica.

    The model gives each node an embedding; a pair's score is the product of its two. The loss is
    the mean binary cross-entropy of a step's links and negatives.
    """

    name: Literal["links"] = "links"
    """The task."""
    embedding: Positive = 64
    """Width of a node's embedding, which the model's last layer computes in place of classes."""
    negatives: Positive = 1
    """Negative pairs for each link of a step: its first node and a node that no training link joins
    to it."""
    val_share: Share = 0.05
    """Share of all links that validate; no layer sees them."""
    test_share: Share = 0.10
    """Share of all links that test; no layer sees them."""
    pool: Positive = 100_000
    """The most negatives that the links of a split are ranked against, at most as many as its
    links."""
    hits: Positive = 10
    """The k of hits@k: a link is a hit if its score exceeds that of the k-th best negative."""

    @model_validator(mode="after")
    def _leaves_some(self) -> Links:
        if self.val_share + self.test_share >= 1.0:
            raise ValueError(
                f"test_share: found {self.test_share} beside val_share {self.val_share}; allowed: "
                "less than 1 together, the other links train"
            )
        return self
