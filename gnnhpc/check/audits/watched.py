"""What was seen in the steps that were looked at closely, and what replicas hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnnhpc.check.observations import RankObservations
from gnnhpc.check.watches.evaluated_nodes import not_each_once
from gnnhpc.check.watches.projection import is_mean
from gnnhpc.check.watches.replica_watch import unlike_replicas
from gnnhpc.check.watches.stage_traffic import WAYS
from gnnhpc.check.watches.state_hashes import differing, named_in_words
from gnnhpc.check.watches.watched import Watched
from gnnhpc.core.layout import Layout
from gnnhpc.records.schema import Check

_GOOD = {
    "inputs": "inputs given to the first stage are those of the raw data",
    "targets": "labels given to the loss are those of the raw data",
    "order": "samples come in a new order each epoch, as the seed says",
    "chunks": "micro-batches hold the nodes and edges that their mode or sampling promises",
    "outputs": "the model's outputs are those that are judged",
    "metrics": "what is reported is what outputs and raw labels give",
    "raw loss": "the loss is that of the outputs and the raw labels",
    "loss gradient": "backwards begin at the gradient of the loss of the raw labels",
    "contexts": "every micro-batch was given its number, its step and its seed",
    "modes": "modules were in training mode in training and in evaluation mode in evaluation",
    "initial values": "layers began with the values that the seed gives",
    "optimizer": "parameters moved as the optimizer's rule and their gradients say",
    "evaluation": "evaluation changed nothing and drew nothing",
    "continuity": "between steps nothing changed but what averaging over replicas may",
}
_WHERE_SEEN = {
    "generators": "generators began as the seed says, and layers alone drew from them",
    "dropout masks": "dropout of features drops what seed, step, layer and rate say",
    "running statistics": "training moves running statistics",
    "gradient norm": "recorded norms are those of the gradients used",
    "recomputed outputs": "forwards computed again in backward give what the first ones gave",
    "gradients used": "the gradients used are those of the backwards",
}
_LENIENT = {"continuity", "modes", "initial values", "running statistics", "gradients used"}
"""Where a user's own layers may do so on purpose."""
_OF_KIND: dict[str, tuple[str, ...]] = {
    "order": ("images", "sampled", "graphs"),
    "chunks": ("graph", "sampled", "graphs"),
}


def watched_checks(
    observations: Sequence[RankObservations],
    layout: Layout,
    held_by: Sequence[int],
    graph: Mapping[str, Any],
) -> list[Check]:
    """One check for each thing that was watched; none of a run in which nothing was. `held_by` are
    the stages that hold each part of the model, `graph` is what will be told of its chunks."""
    watched = [each.watched for each in observations if each.watched is not None]
    if len(watched) < len(observations):
        return []
    kind = watched[0].kind
    names = [name for name in _GOOD if kind in _OF_KIND.get(name, (kind,))]
    checks = [_findings(watched, name) for name in names]
    evaluated = [watched[rank].evaluated_nodes for rank in layout.replica_ranks(0)]
    cause = not_each_once(evaluated, watched[0].nodes_and_edges[0])
    if cause is not None:
        place = names.index("chunks")
        if checks[place].verdict == "ok":
            checks[place] = Check("chunks", "invalid", f"in evaluation {cause}", {})
    # Few layers have running statistics, and torch's replicas hide each one's own gradient.
    checks += [_findings(watched, name) for name in _WHERE_SEEN if _looks(watched, name)]
    if any(each.shared for each in watched) and checks[-1].verdict == "ok":
        checks[-1] = shared_gradients(watched, layout)
    checks.append(one_model(watched, layout))
    if layout.stages > 1:
        checks.append(cuts(observations, watched, layout, held_by))
    if kind == "graph":
        checks.append(graph_facts(watched, layout, graph))
    if watched[0].facts:
        checks.append(sample_facts(watched[0].facts, graph))
    if watched[0].evaluated:
        checks.append(statistics(watched, layout))
    return checks


def _findings(watched: Sequence[Watched], name: str) -> Check:
    """Invalid where any rank has a finding, the earliest told; unknown where none has looked."""
    looks = _looks(watched, name)
    found = [
        (finding.phase != "train", finding.step, rank, str(finding))
        for rank, each in enumerate(watched)
        for finding in each.findings.kept
        if finding.check == name
    ]
    if found:
        *_, rank, first = min(found)
        wrong = sum(each.findings.wrong[name] for each in watched)
        detail = f"rank {rank}, {first}" + (f" ({wrong} such findings)" if wrong > 1 else "")
        lenient = name in _LENIENT and watched[rank].own_model
        return Check(name, "suspect" if lenient else "invalid", detail, {"found": wrong})
    if not looks:
        return Check(name, "unknown", "nothing of it could be looked at", {"looks": 0})
    return Check(name, "ok", (_GOOD | _WHERE_SEEN)[name], {"looks": looks})


def _looks(watched: Sequence[Watched], name: str) -> int:
    return sum(each.findings.looks[name] for each in watched)


def graph_facts(watched: Sequence[Watched], layout: Layout, told: Mapping[str, Any]) -> Check:
    """Edges kept and redundancy are those of the chunks that first stages were given."""
    first = [watched[rank] for rank in layout.replica_ranks(0)]
    chunks = [counts for each in first for counts in each.chunks.values()]
    nodes, edges = first[0].nodes_and_edges
    if len(chunks) != told["chunks"]:
        return Check("graph", "unknown", f"{len(chunks)} of {told['chunks']} chunks were seen", {})
    kept = sum(each.edges[-1] for each in chunks if each.edges)
    computed, hops = sum(sum(each.edges) for each in chunks), len(chunks[0].edges)
    plain = {
        "edges_kept": kept / edges if hops and edges else 1.0,
        "node_redundancy": sum(each.rows for each in chunks) / nodes,
        "edge_redundancy": computed / (hops * kept) if hops and kept else 1.0,
    }
    wrong = [
        f"{name} is told as {told[name]:.6g}, chunks have {value:.6g}"
        for name, value in plain.items()
        if not math.isclose(told[name], value, rel_tol=1e-9)
    ]
    if wrong:
        return Check("graph", "invalid", "; ".join(wrong), plain)
    return Check("graph", "ok", "edges kept and redundancy are those of the chunks", plain)


def sample_facts(plain: Mapping[str, int], told: Mapping[str, Any]) -> Check:
    """Of what mini-batches are drawn from the result tells what a second reading counts."""
    wrong = [
        f"{name} is told as {told.get(name)}, the data have {count}"
        for name, count in plain.items()
        if told.get(name) != count
    ]
    if wrong:
        return Check("graph", "invalid", "; ".join(wrong), dict(plain))
    return Check("graph", "ok", "what is told of the data is what they have", dict(plain))


def one_model(watched: Sequence[Watched], layout: Layout) -> Check:
    """Replicas hold the same parameters, bit for bit, at every moment that was hashed."""
    for moment in watched[0].parameters:
        hashes = [each.parameters.get(moment, {}) for each in watched]
        unlike = unlike_replicas(hashes, layout)
        if unlike is not None:
            detail = f"at {moment} {unlike}"
            if moment == "the first step":
                detail += ": they began with other values"
            return Check("replica parameters", "invalid", detail, {})
    moments = len(watched[0].parameters)
    detail = f"{layout.replicas} replicas hold the same parameters, hashed {moments} times"
    return Check("replica parameters", "ok", detail, {"moments": moments})


def statistics(watched: Sequence[Watched], layout: Layout) -> Check:
    """Evaluations used running statistics that are the mean of the replicas' own, and one model."""
    for stage in range(layout.stages):
        ranks = layout.replica_ranks(stage)
        for evaluations in zip(*(watched[rank].evaluated for rank in ranks), strict=True):
            step = evaluations[0].step
            for name in evaluations[0].own:
                own = [each.own[name] for each in evaluations]
                for replica, each in enumerate(evaluations):
                    if not is_mean(each.averaged[name], own, watched[0].dtype):
                        detail = (
                            f"test step {step}: {name} of replica {replica} is not the mean of "
                            f"those of {len(own)} replicas"
                        )
                        return Check("statistics", "invalid", detail, {})
            for replica, each in enumerate(evaluations):
                unlike = differing(evaluations[0].buffers, each.buffers)
                if unlike:
                    detail = (
                        f"test step {step}: replicas 0 and {replica} evaluate with different "
                        f"{named_in_words(unlike)}"
                    )
                    lenient = watched[0].own_model
                    return Check("statistics", "suspect" if lenient else "invalid", detail, {})
    detail = f"{layout.replicas} replicas evaluate with the mean of their running statistics"
    return Check("statistics", "ok", detail, {"evaluations": len(watched[0].evaluated)})


@dataclass(frozen=True)
class _Cut:
    """Between two neighbouring parts of the model, of one replica: stage, part of it, rank."""

    here: tuple[int, int, int]
    there: tuple[int, int, int]
    learns: bool
    """Whether a gradient is wanted: before the first part with parameters none is, though torch
    sends one."""
    several: bool
    """Whether stages have several parts."""

    def named(self, end: tuple[int, int, int]) -> str:
        stage, part, _ = end
        return f"part {part} of stage {stage}" if self.several else f"stage {stage}"


def _cuts(
    observations: Sequence[RankObservations], layout: Layout, held_by: Sequence[int]
) -> Iterator[_Cut]:
    parts = len(observations[0].trained_parts)
    for replica in range(layout.replicas):
        ranks = layout.pipeline_ranks(replica)
        ends = [
            (stage, held_by[:number].count(stage), ranks[stage])
            for number, stage in enumerate(held_by)
        ]
        learns = False
        for here, there in itertools.pairwise(ends):
            _, part, rank = here
            learns = learns or observations[rank].trained_parts[part]
            yield _Cut(here, there, learns, parts > 1)


def cuts(
    observations: Sequence[RankObservations],
    watched: Sequence[Watched],
    layout: Layout,
    held_by: Sequence[int],
) -> Check:
    """What a part of the model hands on is what the next is given, and so are gradients on their
    way back."""
    compared = 0
    for cut in _cuts(observations, layout, held_by):
        (_, part, rank), (_, next_part, next_rank) = cut.here, cut.there
        for here, there in zip(watched[rank].crossed, watched[next_rank].crossed, strict=True):
            for mine, next_one in WAYS:
                if mine != "output" and not cut.learns:
                    continue
                sent = here.hashes.get((mine, part), [])
                told = _other_hashes(sent, there.hashes.get((next_one, next_part), []))
                compared += 1
                if told is not None:
                    detail = (
                        f"{here.phase} step {here.step}: the {mine} of {cut.named(cut.here)} is "
                        f"not the {next_one} of {cut.named(cut.there)} {told}"
                    )
                    return Check("cuts", "invalid", detail, {})
    if not compared:
        return Check("cuts", "unknown", "nothing of it could be looked at", {"looks": 0})
    return Check("cuts", "ok", "what crosses a cut arrives as it was sent", {"looks": compared})


def _other_hashes(here: Sequence[tuple[int, int]], there: Sequence[tuple[int, int]]) -> str | None:
    """How two stages' hashes differ, by micro-batch; none where they are the same."""
    if list(here) == list(there):
        return None
    numbers = [m for m, _ in here]
    if numbers != [m for m, _ in there]:
        return f"but for micro-batches {numbers} against {[m for m, _ in there]}"
    wrong = [m for (m, mine), (_, other) in zip(here, there, strict=True) if mine != other]
    by_hash = {found: m for m, found in here}
    swapped = [by_hash.get(found) for m, found in there if m in wrong]
    if all(m is not None for m in swapped):
        return f"of micro-batches {wrong}: it is that of {swapped}"
    return f"of micro-batches {wrong}"


def shared_gradients(watched: Sequence[Watched], layout: Layout) -> Check:
    """The gradient that optimizers use is the mean of what the replicas' backwards gave."""
    for stage in range(layout.stages):
        ranks = layout.replica_ranks(stage)
        for gradients in zip(*(watched[rank].shared for rank in ranks), strict=True):
            own = [each.own for each in gradients]
            for replica, each in enumerate(gradients):
                if not is_mean(each.used, own, watched[0].dtype):
                    mean = sum(one.value for one in own) / len(own)
                    times = f"{each.used.value / mean:.4g} times " if mean else "not "
                    detail = (
                        f"train step {each.step}: the gradient that replica {replica} used on "
                        f"stage {stage} is {times}the mean of what {len(own)} replicas' backwards "
                        "gave"
                    )
                    return Check("gradients used", "invalid", detail, {})
    looks = _looks(watched, "gradients used")
    return Check("gradients used", "ok", _WHERE_SEEN["gradients used"], {"looks": looks})
