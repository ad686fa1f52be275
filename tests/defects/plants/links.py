"""Links: what a step may not see, what stands against them, and how they are judged."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnhpc.batches.batch import Batch
from gnnhpc.batches.sampled import learnt as learnt_module
from gnnhpc.batches.sampled.graph_sampler import GraphSampler
from gnnhpc.batches.sampled.learnt import Asked, LinksLearnt
from gnnhpc.batches.sampled.link_evaluation import LinkEvaluation
from gnnhpc.batches.sampled.sampled_batches import SampledBatches
from gnnhpc.batches.shares import Share, Shares
from gnnhpc.check.plain.draws import draws
from gnnhpc.graphs.blocks import GraphChunk
from gnnhpc.links import negatives as negatives_module
from gnnhpc.links import split as split_module
from gnnhpc.links.negatives import Negatives
from gnnhpc.links.split import LinkSplit
from gnnhpc.tasks.links import LinkPrediction
from gnnhpc.tasks.task import Tally
from tests.defects import settings
from tests.defects.defect import planted
from tests.defects.patching import around, replace

KIND = "links"
defect = functools.partial(planted, kind=KIND)


@defect("links that a step predicts left in its sample", setting=settings.LINKS)
def left_in() -> None:
    def whole(true: Any, learnt: LinksLearnt, share: Share) -> tuple[Asked, ...]:
        asked = true(learnt, share)
        return tuple(dataclasses.replace(each, without=None) for each in asked)

    around(LinksLearnt, "asked", whole)


@defect("one direction alone of the links that a step predicts left out", setting=settings.LINKS)
def one_direction() -> None:
    def once(true: Any, *args: Any) -> LinkSplit:
        split: LinkSplit = true(*args)
        return dataclasses.replace(split, both=split.both[:, :1])

    around(split_module, "split_links", once)


@defect("a replica's own links alone left out of its sample", setting=settings.LINKS_REPLICAS)
def own_alone() -> None:
    """So that one replica learns from the links that another predicts in the same step."""

    def own(true: Any, learnt: LinksLearnt, share: Share) -> tuple[Asked, ...]:
        found: tuple[Asked, ...] = true(learnt, dataclasses.replace(share, whole=share.places))
        return found

    around(LinksLearnt, "asked", own)


@defect("links to validate in the graph that is learnt from", setting=settings.LINKS)
def leaked() -> None:
    def more(true: Any, *args: Any) -> LinkSplit:
        split: LinkSplit = true(*args)
        links = torch.cat((split.train, split.val))
        message, both = split_module._message(split.message, links)
        return dataclasses.replace(split, message=message, both=both[: len(split.train)])

    around(split_module, "split_links", more)


@defect("negatives that may be links", setting=settings.LINKS)
def links_as_negatives() -> None:
    def any_node(true: Any, negatives: Negatives, kept: Tensor, *args: Any) -> Tensor:
        found: Tensor = true(negatives, kept, *args)
        edges = negatives._edges
        joined = edges.source[edges.indptr[kept].clamp(max=len(edges.source) - 1)].long()
        found[::9] = joined[::9, None]
        return found

    around(Negatives, "of", any_node)


@defect("negatives by 16 bits modulo the nodes", setting=settings.LINKS)
def sixteen_bits() -> None:
    def modulo(
        negatives: Negatives, kept: Tensor, numbers: Tensor, step: int, count: int
    ) -> Tensor:
        found = torch.empty(len(kept), count, dtype=torch.int64)
        for place, (node, number) in enumerate(zip(kept.tolist(), numbers.tolist(), strict=True)):
            first, end = negatives._edges.indptr[node : node + 2].tolist()
            joined = {node, *negatives._edges.source[first:end].tolist()}
            drawn = draws(negatives._seed, number, step, 1 << 31)
            nodes = ((each & 0xFFFF) % negatives._nodes for each in drawn)
            found[place] = next(each for each in nodes if each not in joined)
        return found

    replace(Negatives, "of", modulo)


@defect("the same negatives in every step", setting=settings.LINKS)
def one_step() -> None:
    def first(
        true: Any, negatives: Negatives, kept: Tensor, numbers: Tensor, step: int, count: int
    ) -> Any:
        return true(negatives, kept, numbers, 0, count)

    around(Negatives, "of", first)


@defect("negatives numbered from each replica's first link", setting=settings.LINKS_REPLICAS)
def numbered_anew() -> None:
    """Replicas draw by the same numbers."""

    def anew(
        true: Any, negatives: Negatives, kept: Tensor, numbers: Tensor, step: int, count: int
    ) -> Any:
        return true(negatives, kept, torch.arange(len(numbers)), step, count)

    around(Negatives, "of", anew)


@defect("every replica learns all links of a step", setting=settings.LINKS_REPLICAS)
def unsharded() -> None:
    def whole(true: Any, shares: Shares, step: int) -> Share:
        share: Share = true(dataclasses.replace(shares, replica=0), step)
        return share

    around(Shares, "of_step", whole)


@defect("links labelled as none, and negatives as links", setting=settings.LINKS)
def swapped_labels() -> None:
    def swapped(true: Any, *args: Any) -> Tensor:
        targets: Tensor = true(*args)
        targets[:, 2] = 1 - targets[:, 2]
        return targets

    replace(learnt_module, "link_targets", functools.partial(swapped, learnt_module.link_targets))


@defect("the last link of each mini-batch left out", setting=settings.LINKS)
def last_left_out() -> None:
    def shorter(true: Any, shares: Shares, step: int) -> Share:
        share: Share = true(shares, step)
        *others, last = share.seeds
        place = share.places[:-1]
        left = shares.train[torch.from_numpy(share.places[-1:])]
        seeds = (*others, last[last != left])
        return dataclasses.replace(share, places=place, seeds=seeds)

    around(Shares, "of_step", shorter)


@defect("the loss of links divided by the links alone", setting=settings.LINKS)
def divided_by_links() -> None:
    def fewer(true: Any, batches: SampledBatches, drawn: Any) -> Batch:
        batch: Batch = true(batches, drawn)
        return dataclasses.replace(batch, labelled=drawn.share.together)

    around(SampledBatches, "_batch", fewer)


@defect("links to test judged by those to validate", setting=settings.LINKS)
def validated_twice() -> None:
    def other(true: Any, evaluation: LinkEvaluation, step: int) -> Batch:
        batch: Batch = true(evaluation, step)
        parts = tuple(
            dataclasses.replace(each, targets=each.targets | {"test": each.targets["val"]})
            for each in batch.microbatches
        )
        return dataclasses.replace(batch, microbatches=parts)

    around(LinkEvaluation, "_batch", other)


@defect("the validation AUC told as that of the test", setting=settings.LINKS)
def other_auc() -> None:
    def told(true: Any, task: LinkPrediction, phase: str, *args: Any) -> Tally:
        tally: Tally = true(task, phase, *args)
        return tally | {"test_auc": tally["val_auc"]} if phase == "test" else tally

    around(LinkPrediction, "tally", told)


@defect("hits above the negative of the next rank", setting=settings.LINKS)
def next_rank() -> None:
    def lower(true: Any, task: LinkPrediction, *args: Any) -> dict[str, float]:
        found: dict[str, float] = true(task, *args)
        more: dict[str, float] = true(dataclasses.replace(task, hits=task.hits + 9), *args)
        return found | {f"hits@{task.hits}": more[f"hits@{task.hits + 9}"]}

    around(LinkPrediction, "_judged", lower)


@defect("a pool drawn from all pairs of nodes", setting=settings.LINKS)
def any_pairs() -> None:
    def without_edges(true: Any, joined: Any, *args: Any) -> Tensor:
        found: Tensor = true(joined[:1], *args)
        return found

    around(negatives_module, "pool", without_edges)


@defect("links judged by the embeddings of other nodes", setting=settings.LINKS)
def other_embeddings() -> None:
    """Rows, features and edges fit one another, and are of the nodes with the next numbers."""

    def beside(
        true: Any, evaluation: LinkEvaluation, sampler: GraphSampler, place: int
    ) -> GraphChunk:
        chunk: GraphChunk = true(evaluation, sampler, place)
        nodes = ((chunk.nodes[: chunk.own] + 1) % chunk.full.nodes).sort().values
        return dataclasses.replace(sampler.chunk(nodes, 0), targets=chunk.targets, sampled=False)

    around(LinkEvaluation, "_chunk", beside)


@defect("every replica counts all judged links as its own", setting=settings.LINKS_REPLICAS)
def counted_by_all() -> None:
    """Which makes a second replica look like twice the links a second."""

    def everyone(true: Any, evaluation: LinkEvaluation, step: int) -> Batch:
        batch: Batch = true(evaluation, step)
        links = np.arange(len(evaluation._links.val) + len(evaluation._links.test))
        return dataclasses.replace(batch, samples=len(links), sample_ids=links)

    around(LinkEvaluation, "_batch", everyone)
