"""Link prediction as a task: which links are learnt, which are judged, and against what."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gnnhpc.core.settings import Positive, Strict

Share = Annotated[float, Field(gt=0.0, lt=1.0)]


class Links(Strict):
    """Of a run that learns which nodes are joined; `batch_size` is then links a replica.

    The model gives each node an embedding; a pair's score is the product of its two. The loss is
    the mean binary cross-entropy of a step's links and negatives.
    """

    name: Literal["links"] = "links"
    embedding: Positive = 64
    """Numbers that the model's last layer gives a node, in place of one for each class."""
    negatives: Positive = 1
    """Pairs without an edge for each link of a step: its first end, and a node that no link to
    train on joins to it."""
    val_share: Share = 0.05
    """Of all links, those that validate: no layer sees them."""
    test_share: Share = 0.10
    """And those that test."""
    pool: Positive = 100_000
    """The most negatives that all links of a split are judged against; no more than its links."""
    hits: Positive = 10
    """A link is a hit whose score is above that of the negative of this rank."""

    @model_validator(mode="after")
    def _leaves_some(self) -> Links:
        if self.val_share + self.test_share >= 1.0:
            raise ValueError(
                f"test_share: found {self.test_share} beside val_share {self.val_share}; allowed: "
                "less than 1 together, the other links train"
            )
        return self

    @property
    def hits_name(self) -> str:
        """Of the metric."""
        return f"hits@{self.hits}"
