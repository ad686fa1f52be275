"""What was seen in the steps that were looked at closely, and what replicas hold."""

from __future__ import annotations

from collections.abc import Sequence

from gnnhpc.check.observations import RankObservations
from gnnhpc.check.watches.evaluation_watch import Projection
from gnnhpc.check.watches.replica_watch import unlike_replicas
from gnnhpc.check.watches.state_hashes import differing, named_in_words
from gnnhpc.check.watches.watched import Watched
from gnnhpc.core.layout import Layout
from gnnhpc.records.schema import Check

SINGLE = 2.0**-23
"""Distance of 1 to the next number of float32, in which running statistics are averaged."""
_GOOD = {
    "inputs": "inputs given to the first stage are those of the raw data",
    "targets": "labels given to the loss are those of the raw data",
    "order": "samples come in a new order each epoch, as the seed says",
    "chunks": "chunks hold the nodes and the edges that their mode promises",
    "raw loss": "the loss is that of the outputs and the raw labels",
    "contexts": "every micro-batch was given its number, its step and its seed",
    "modes": "modules were in training mode in training and in evaluation mode in evaluation",
    "optimizer": "parameters moved as the optimizer's rule and their gradients say",
    "evaluation": "evaluation changed nothing and drew nothing",
}
_OF_KIND = {"order": "images", "chunks": "graph"}


def watched_checks(observations: Sequence[RankObservations], layout: Layout) -> list[Check]:
    """One check for each thing that was watched; none of a run in which nothing was."""
    watched = [each.watched for each in observations if each.watched is not None]
    if len(watched) < len(observations):
        return []
    names = [name for name in _GOOD if _OF_KIND.get(name, watched[0].kind) == watched[0].kind]
    checks = [_findings(watched, name) for name in names]
    checks.append(one_model(watched, layout))
    if watched[0].evaluated:
        checks.append(statistics(watched, layout))
    return checks


def _findings(watched: Sequence[Watched], name: str) -> Check:
    """Invalid where any rank has a finding, the earliest told; unknown where none has looked."""
    looks = sum(each.findings.looks[name] for each in watched)
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
        lenient = name == "modes" and watched[rank].own_model
        return Check(name, "suspect" if lenient else "invalid", detail, {"found": wrong})
    if not looks:
        return Check(name, "unknown", "nothing of it could be looked at", {"looks": 0})
    return Check(name, "ok", _GOOD[name], {"looks": looks})


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
                    if not _is_mean(each.averaged[name], own):
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


def _is_mean(found: Projection, own: Sequence[Projection]) -> bool:
    """But for the rounding of each term's division and of the sum of as many terms."""
    mean = sum(each.value for each in own) / len(own)
    size = sum(each.size for each in own) / len(own)
    return abs(found.value - mean) <= SINGLE * (len(own) + 2) * size
