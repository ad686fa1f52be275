"""Which cells are valid and which count: by their audits, their siblings, and likeness."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pandas as pd

from analysis.across.likeness import Facts
from analysis.across.siblings import Siblings, in_sentences
from analysis.loading.attempts import DAMAGED
from analysis.loading.compared_facts import differences_from_study, unlike_cells
from analysis.loading.learnt import Key
from analysis.loading.run_folder import RunFolder

SIBLINGS, UNLIKE, APART = "siblings", "unlike", "apart"
Raised = tuple[str, str, str, str]
"""A check that is not passed: cell, name, verdict, detail."""


@dataclass(frozen=True)
class JudgedCells:
    """The frame of cells with `valid`, `flags`, `difference`, `unlike` and `counts`, and why.

    `difference`: how a valid cell is unlike the most of its study, in words; `unlike` is the same
    for cells that do not count for it.
    """

    cells: pd.DataFrame
    settings: tuple[str, ...]
    checks: pd.DataFrame
    facts: dict[str, Facts]


def judge_cells(
    cells: pd.DataFrame,
    settings: tuple[str, ...],
    folder: RunFolder,
    facts: Mapping[Key, Facts],
    resumes: Mapping[Key, str],
    siblings: Siblings,
    *,
    apart: bool,
) -> JudgedCells:
    """`resumes` are attempts whose steps do not count, as the one that resumed them is unlike."""
    raised = [*_audits(folder), *_departures(folder, siblings)]
    named = {cell for cell, name, _, _ in raised if name == SIBLINGS}
    cells["valid"] &= ~cells["cell"].isin(named)
    mine = [
        facts.get((number, chosen.number), {}) if chosen else {}
        for number, chosen in enumerate(folder.chosen)
    ]
    words = differences_from_study(cells, mine, settings)
    if apart:
        cells[APART] = words
        settings = (*settings, APART)
    aside = unlike_cells(cells, mine, settings, words)
    cells["difference"] = words
    cells["unlike"] = [text if out else "" for text, out in zip(words, aside, strict=True)]
    cells["counts"] = cells["valid"] & ~pd.Series(aside, dtype=bool)
    raised += [
        (cell, UNLIKE, "suspect", f"{text}: in no average and no ratio")
        for cell, text, out in zip(folder.names, words, aside, strict=True)
        if out
    ]
    raised += [
        (
            folder.names[number],
            UNLIKE,
            "suspect",
            f"{text} of attempt {attempt}, which it resumed: that one's steps do not count",
        )
        for (number, attempt), text in resumes.items()
    ]
    checks = pd.DataFrame(raised, columns=["cell", "name", "verdict", "detail"])
    flags = checks.groupby("cell", sort=False)["name"].agg(
        lambda names: ";".join(dict.fromkeys(names))
    )
    cells["flags"] = [str(flags.get(name, "")) for name in folder.names]
    known = {name: each for name, each in zip(folder.names, mine, strict=True) if each}
    return JudgedCells(cells, settings, checks, known)


def _audits(folder: RunFolder) -> Iterator[Raised]:
    """What a cell's own audit found; of a damaged one the damage alone."""
    for cell, chosen in zip(folder.names, folder.chosen, strict=True):
        if chosen and chosen.damage:
            yield cell, DAMAGED, "invalid", chosen.damage
            continue
        for check in chosen.result.audit if chosen and chosen.result else ():
            if check.verdict in ("invalid", "suspect"):
                yield cell, check.name, check.verdict, check.detail


def _departures(folder: RunFolder, siblings: Siblings) -> Iterator[Raised]:
    """A cell is named for the attempt that counts and for those that it resumed.

    Another attempt that is alone is only mentioned: it is in no number.
    """
    used = {
        (cell, attempt)
        for cell, by_attempt in zip(folder.names, folder.headers, strict=True)
        for attempt in by_attempt
    }
    for accusation in siblings.accusations:
        mine, words = accusation.sibling, in_sentences(accusation)
        if (mine.cell, mine.attempt) in used:
            yield mine.cell, SIBLINGS, "invalid", words
        elif accusation.acquitted:
            yield mine.cell, "attempts", "suspect", f"{words}; another attempt counts"
