"""Puts the frames of several runs into one run, under ids that tell their cells apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.across.siblings import Siblings
from analysis.loading.run import Run

Ids = Mapping[str, str]
"""Of one run: a cell's id there -> its id in the joined run; cells that are left out are not in."""


def join_runs(
    runs: Sequence[Run],
    cells: Sequence[pd.DataFrame],
    ids: Sequence[Ids],
    names: tuple[str, ...],
    lines: tuple[str, ...],
) -> Run:
    """One run with the cells in `ids`; `cells` are the runs' with columns added."""
    order = pd.Index([new for mine in ids for new in mine.values()])

    def joined(frames: Sequence[pd.DataFrame], *, categorical: bool) -> pd.DataFrame:
        return _join(frames, ids, order if categorical else None)

    return Run(
        root=runs[0].root,
        cells=joined(cells, categorical=True),
        steps=joined([run.steps for run in runs], categorical=True),
        ranks=joined([run.ranks for run in runs], categorical=True),
        groups=joined([run.groups for run in runs], categorical=True),
        parts=joined([run.parts for run in runs], categorical=True),
        spans=joined([run.spans for run in runs], categorical=True),
        attempts=joined([run.attempts for run in runs], categorical=False),
        phases=joined([run.phases for run in runs], categorical=False),
        settings=tuple(dict.fromkeys(key for run in runs for key in run.settings)),
        checks=joined([run.checks for run in runs], categorical=False),
        facts={
            new: run.facts[old]
            for run, mine in zip(runs, ids, strict=True)
            for old, new in mine.items()
            if old in run.facts
        },
        siblings=_join_siblings([run.siblings for run in runs], ids),
        provenance=_join_provenance([run.provenance for run in runs], names),
        joined=names,
        joining=lines,
    )


def _join(frames: Sequence[pd.DataFrame], ids: Sequence[Ids], order: Any) -> pd.DataFrame:
    """Rows of the cells in `ids`, run after run; `order` are the categories of all ids, if any."""
    parts = []
    for frame, mine in zip(frames, ids, strict=True):
        old = frame["cell"].astype(str)
        kept = frame[old.isin(list(mine)).to_numpy()]
        new = old[kept.index].map(mine)
        parts.append(kept.assign(cell=pd.Categorical(new, order) if order is not None else new))
    # A column that is empty in one run must not decide the type of the whole.
    filled = [part for part in parts if len(part)] or parts[:1]
    for name in filled[0].columns:
        if name == "cell" or not isinstance(filled[0][name].dtype, pd.CategoricalDtype):
            continue
        categories = list(dict.fromkeys(c for part in filled for c in part[name].cat.categories))
        filled = [
            part.assign(**{name: part[name].cat.set_categories(categories)}) for part in filled
        ]
    return pd.concat(filled, ignore_index=True)


def _join_siblings(found: Sequence[Siblings], ids: Sequence[Ids]) -> Siblings:
    """As each run has them; cells of different runs are not held against one another here."""
    some = [each for each in found if each.families]
    return Siblings(
        [accusation for each in found for accusation in each.accusations],
        sum(each.families for each in found),
        frozenset(
            mine[cell]
            for each, mine in zip(found, ids, strict=True)
            for cell in each.compared & mine.keys()
        ),
        (
            min((each.steps[0] for each in some), default=0),
            max((each.steps[1] for each in some), default=0),
        ),
    )


def _join_provenance(
    found: Sequence[Mapping[str, Any] | None], names: Sequence[str]
) -> dict[str, Any] | None:
    """What all say alike once, and what differs with the run's name before it."""
    known = [(name, facts) for name, facts in zip(names, found, strict=True) if facts is not None]
    if not known:
        return None
    keys = dict.fromkeys(key for _, facts in known for key in facts)
    joined: dict[str, Any] = {}
    for key in keys:
        values = [(name, facts.get(key)) for name, facts in known]
        if all(value == values[0][1] for _, value in values):
            joined[key] = values[0][1]
        else:
            joined[key] = "; ".join(f"{name}: {_text(value)}" for name, value in values)
    return joined


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
