"""Link prediction as a task: which links are trained on, which are scored, and against what."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from gnnhpc.core.settings import Positive, Strict

Share = Annotated[float, Field(gt=0.0, lt=1.0)]


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

    @property
    def hits_name(self) -> str:
        """The name of the metric."""
        return f"hits@{self.hits}"
