"""What a run's sampled configurations say of Boca's conclusions, pair by pair."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from analysis.statistics.intervals import Interval
from analysis.studies.boca_claims import (
    BOTTLENECK,
    CLAIMS,
    HANGS,
    MODELS,
    ON_FOUR,
    ON_TWO,
    OURS_BOTTLENECK,
    WORKERS,
    published_speedups,
)
from analysis.studies.boca_runs import BocaRow, BocaRows
from analysis.studies.claims import Claim, Finding
from analysis.summary.settings_in_words import SAMPLERS

_ENDED = ("done",)
_FOUR = 4


def boca_findings(rows: BocaRows) -> list[Finding]:
    """All comparisons, conclusion by conclusion; published ones that the run lacks come last.

    A published number stands beside ours of the same model, library and batch, whose data and
    number of data workers may be others: our label says which.
    """
    published = {
        (claim, f"{model}, {library}, batch {batch}"): speedup
        for claim, model, library, batch, speedup in published_speedups()
    }
    measured = [finding for row in rows for finding in _of_row(row, rows)]
    measured += _hangs(rows)
    found = []
    for claim in CLAIMS:
        mine = [finding for finding in measured if finding.claim is claim]
        found += [finding.beside(published.get((claim, finding.setting))) for finding in mine]
        settings = {finding.setting for finding in mine}
        found += [
            Finding(claim, setting, number)
            for (of, setting), number in published.items()
            if of is claim and setting not in settings
        ]
    return found


def _of_row(row: BocaRow, rows: BocaRows) -> Iterator[Finding]:
    """Everything that is told by this row, alone and beside another one."""
    setting = f"{row.model}, {row.draws if row.library == 'ours' else row.library}"
    setting += f", batch {row.batch_size}"
    claim = OURS_BOTTLENECK if row.library == "ours" else BOTTLENECK
    count = f"{row.workers} worker{'' if row.workers == 1 else 's'}"
    words = f"{setting}, {row.row.layout}, {count}"
    yield Finding(claim, words, None, row.waiting, row.runs, row.label)
    for ranks, claims in ((2, ON_TWO), (4, ON_FOUR)):
        faster = claims.get(row.library)
        if faster is not None and row.ranks == ranks:
            fewer = rows.like(row, {"layout": "seq" if ranks == 2 else "dp2"}, ("train_steps",))
            if fewer is not None:
                yield _speedup(faster, setting, row, fewer, 2.0)
    fewer = _of_fewer_workers(row, rows)
    if fewer is not None:
        words = f"{setting}, {row.row.layout}, {row.workers} over {fewer.workers}"
        yield _speedup(WORKERS, words, row, fewer)


def _of_fewer_workers(row: BocaRow, rows: BocaRows) -> BocaRow | None:
    """The row that differs in nothing but that it has fewer workers, of these the most."""
    counts = sorted({other.workers for other in rows if other.workers < row.workers})
    found = (rows.like(row, {"workers": count}) for count in reversed(counts))
    return next((other for other in found if other is not None), None)


def _speedup(
    claim: Claim, setting: str, row: BocaRow, other: BocaRow, bound: float | None = None
) -> Finding:
    return Finding(
        claim,
        setting,
        None,
        row.speedup_over(other),
        min(row.runs, other.runs),
        row.label,
        bound,
        row.shares_processors or other.shares_processors,
        "ranks",
    )


def _hangs(rows: BocaRows) -> Iterator[Finding]:
    """Of cells on four ranks with several data workers: whether they ended.

    Why others did not is not told from here, so nothing is concluded where any did not.
    """
    cells = rows.run.cells
    if "sampler" not in rows.run.settings:
        return
    crowded = cells[
        cells["model"].isin(list(MODELS)) & (cells["replicas"] >= _FOUR) & (cells["workers"] > 1)
    ]
    crowded = crowded[crowded["status"] != "missing"]
    for (model, sampler), mine in crowded.groupby(["model", "sampler"], observed=True):
        left = float((~mine["status"].isin(_ENDED)).mean())
        told = Interval(0.0, 0.0, 0.0, f"{len(mine)} cells")
        if left:
            told = Interval(left, None, None, f"{left:.0%} of {len(mine)} cells did not end")
        setting = f"{MODELS[str(model)]}, {SAMPLERS[str(sampler)]}"
        yield Finding(HANGS, setting, None, told, len(mine))


def share_waiting(row: BocaRow) -> dict[str, float | None]:
    """Percent of a step, with bounds."""
    of = row.waiting
    names = ("waiting_percent", "waiting_percent_low", "waiting_percent_high")
    return {
        name: None if value is None or pd.isna(value) else 100.0 * value
        for name, value in zip(names, (of.value, of.low, of.high), strict=True)
    }
