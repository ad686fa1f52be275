"""What a run's configurations of GAT say of Dearing and Wang's conclusions, pair by pair."""

from __future__ import annotations

from collections.abc import Iterator

from analysis.statistics.intervals import Interval
from analysis.studies.claims import Claim, Finding
from analysis.studies.gat_claims import (
    ACCURACY_BY_MODE,
    BECAUSE_REBUILT,
    CLAIMS,
    CUT_ONCE,
    DGL_ON_CPU,
    FOUR_DEVICES,
    LEARN_APART,
    MORE_CHUNKS,
    PYG_ON_GPU,
    REBUILDING,
    in_chunks,
    published_numbers,
)
from analysis.studies.gat_runs import GatRow, GatRows, ratio_of_speedups
from gnnhpc.core.bound_and_bubble import bound

_ON_ONE_DEVICE = ("engine", "schedule", "virtual_stages", "balance", "activation_checkpointing")
"""Settings that one device does not have."""


def gat_findings(rows: GatRows) -> list[Finding]:
    """All comparisons, conclusion by conclusion; published ones that the run lacks come last."""
    published = published_numbers()
    measured = [finding for row in rows for finding in _of_row(row, rows)]
    found = []
    for claim in CLAIMS:
        numbers = published.get(claim, {})
        mine = [finding for finding in measured if finding.claim is claim]
        found += [finding.beside(numbers.get(finding.setting)) for finding in mine]
        settings = {finding.setting for finding in mine}
        found += [
            Finding(claim, setting, number)
            for setting, number in numbers.items()
            if setting not in settings
        ]
    return found


def _of_row(row: GatRow, rows: GatRows) -> Iterator[Finding]:
    """Everything that is told by this row beside another one."""
    if row.chunks == 1 and row.framework == "DGL":
        yield from _frameworks(row, rows)
    if row.chunks == 1 and row.row.layout.stages == 4 and not row.rebuilt:
        yield from _four_devices(row, rows)
    if row.rebuilt:
        yield from _rebuilding(row, rows)
    if row.chunks > 1:
        yield from _more_chunks(row, rows)
        yield from _accuracy(row, rows)


def _frameworks(row: GatRow, rows: GatRows) -> Iterator[Finding]:
    """DGL beside PyG, on one device."""
    other = rows.like(row, {"implementation": "pyg"})
    if other is None or row.row.layout.world_size > 1 or row.rebuilt:
        return
    if row.compute == "CPU":
        yield _speedup(DGL_ON_CPU, row.data, row, other)
    else:
        yield _speedup(PYG_ON_GPU, row.data, other, row)
    less = row.accuracy_less(other, "test")
    if less is not None:
        setting = f"{row.data}, {row.compute}"
        yield _finding(LEARN_APART, setting, less, row, other)


def _four_devices(row: GatRow, rows: GatRows) -> Iterator[Finding]:
    """Where the one chunk's forward is not computed again, which takes time on any device."""
    if row.settings["activation_checkpointing"] == "always":
        return
    one = rows.like(row, {"layout": "seq"}, _ON_ONE_DEVICE)
    if one is not None and row.row.layout.replicas == 1:
        setting = f"{row.data}, {row.framework}"
        yield _speedup(FOUR_DEVICES, setting, row, one, bound=1.0)


def _rebuilding(row: GatRow, rows: GatRows) -> Iterator[Finding]:
    once = rows.like(row, {"rebuild": "once"})
    if once is not None:
        setting = in_chunks(row.data, row.framework, row.chunks, row.where)
        yield _finding(REBUILDING, setting, once.speedup_over(row), row, once)


def _more_chunks(row: GatRow, rows: GatRows) -> Iterator[Finding]:
    """Beside one chunk on the same devices, of which there are several; of rebuilt ones also beside
    both of those cut once.
    """
    one = rows.like(row, {"microbatches": 1}, ("chunks",))
    if one is None or row.row.layout.replicas > 1:
        return
    stages = row.row.layout.stages
    setting = in_chunks(row.data, row.framework, row.chunks, row.where)
    if stages > 1:
        most = bound(1, stages, row.chunks) / bound(1, stages, 1)
        claim = MORE_CHUNKS if row.rebuilt else CUT_ONCE
        yield _speedup(claim, setting, row, one, bound=most)
    if not row.rebuilt:
        return
    pair = rows.like(row, {"rebuild": "once"}), rows.like(one, {"rebuild": "once"})
    if pair[0] is not None and pair[1] is not None:
        ratio = ratio_of_speedups((row, one), (pair[0], pair[1]))
        if ratio is not None:
            yield _finding(BECAUSE_REBUILT, setting, ratio, row, pair[0])


def _accuracy(row: GatRow, rows: GatRows) -> Iterator[Finding]:
    """Rebuilt chunks learn what those cut once learn, and are not counted again."""
    whole = rows.whole_graph_of(row)
    if whole is None or row.rebuilt:
        return
    lost = whole.accuracy_less(row, "val")
    if lost is not None:
        setting = in_chunks(row.data, row.framework, row.chunks)
        yield _finding(ACCURACY_BY_MODE[row.mode], setting, lost, row, whole)


def _speedup(
    claim: Claim,
    setting: str,
    row: GatRow,
    other: GatRow,
    bound: float | None = None,
) -> Finding:
    return _finding(claim, setting, row.speedup_over(other), row, other, bound)


def _finding(
    claim: Claim,
    setting: str,
    ours: Interval,
    row: GatRow,
    other: GatRow,
    bound: float | None = None,
) -> Finding:
    return Finding(
        claim,
        setting,
        None,
        ours,
        min(row.runs, other.runs),
        row.label,
        bound,
        row.shares_processors or other.shares_processors,
    )
