"""Blocks of the first page: what validation checked and cost, and which cells are comparable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd

from analysis.load.comparable import SEPARATE, values_in_words
from analysis.load.raised import EQUIVALENT
from analysis.load.run_data import RunData
from analysis.render.document import TableBlock, Text, rows_table
from gnnhpc.models.model_registry import BUILT_IN


def validation_texts(run: RunData) -> Iterator[Text]:
    """How many cells were validated, what that cost, and which of them were not compared."""
    done = run.cells[run.cells["status"] == "done"]
    if done.empty:
        return
    unchecked = int((done["checks"] == 0).sum())
    if unchecked:
        words = f"{unchecked} of {len(done)} cells were not validated: their results have no check."
        yield Text(words, "warning")
    if unchecked == len(done):
        return
    known = done[["validation_s", "attempt_s"]].dropna().astype(float)
    if len(known):
        share = known["validation_s"].sum() / known["attempt_s"].sum()
        most = (known["validation_s"] / known["attempt_s"]).max()
        seconds = known["validation_s"].sum() / len(known)
        yield Text(
            f"Validation took {share:.1%} of the attempts' time, {seconds:.1f} s an attempt on "
            f"average, and {most:.1%} of one attempt at most."
        )
    custom = sorted({str(label) for label in done["model"] if label not in BUILT_IN})
    if custom:
        yield Text(
            f"For custom models ({', '.join(custom)}) validation checks engine, data, loss and "
            "evaluation; their layers are compared with themselves in one process."
        )
    yield from _inconclusive(run)


def _inconclusive(run: RunData) -> Iterator[Text]:
    """The cells that validation could not compare, by cause."""
    unsure = run.checks[run.checks["verdict"] == "inconclusive"]
    for detail, cells in unsure.groupby("detail", sort=False)["cell"]:
        yield Text(
            f"Validation could not compare {_some(list(dict.fromkeys(cells)))}: {detail}.",
            "warning",
        )


def equivalence_texts(run: RunData) -> Iterator[Text]:
    """How many cells were compared with the sequential cell that must learn the same."""
    found = run.equivalence
    left = run.checks[run.checks["name"] == EQUIVALENT]["cell"].nunique()
    if found.steps or left:
        fewest, most = min(found.steps.values(), default=0), max(found.steps.values(), default=0)
        steps = f"{most}" if fewest == most else f"{fewest} to {most}"
        words = (
            f"Equivalent cells: {len(found.steps)} cells were compared with the sequential cell "
            f"that must learn the same, over their first {steps} training steps; later, rounding "
            "explains any difference"
        )
        if left:
            words += f". {left} cells leave the envelope and are invalid."
        else:
            words += ". All losses and gradient norms agree within the envelope."
        yield Text(words, "bad" if left else "good")
    elif run.cells["valid"].any():
        words = "No cell was compared with another one that must learn the same."
        yield Text(words, "warning")
    if found.without_sequential:
        yield Text(
            f"No sequential cell is equivalent to {_some(found.without_sequential)}, so they are "
            "not compared.",
            "warning",
        )
    if found.only_repeats:
        cells = _some(found.only_repeats)
        yield Text(
            f"Only repeats are equivalent to {cells}. Repeats make the same mistake, so comparing "
            "them shows nothing."
        )


def comparability_texts(run: RunData) -> Iterator[Text]:
    """Whether cells ran live code, and how many are not comparable with the others."""
    known = run.cells[run.cells["code_from"] != ""]
    live = int(known["code_from"].str.contains("live").sum())
    if live:
        yield Text(
            f"{live} of {len(known)} cells ran live code: what the checkout held when they "
            "started, not the code that the run keeps.",
            "warning",
        )
    apart = int((run.cells["not_comparable"] != "").sum())
    if apart:
        shown = "`--separate` shows them as rows of their own"
        if SEPARATE in run.settings:
            shown = f"they are rows of their own, by `{SEPARATE}`"
        yield Text(
            f"{apart} cells are not comparable with most of their study, so they are in no average "
            f"and no ratio with these; {shown}.",
            "warning",
        )


def _some(cells: Sequence[str]) -> str:
    """The number of cells, with the first one's id."""
    if len(cells) == 1:
        return f"cell {cells[0]}"
    return f"{len(cells)} cells, such as {cells[0]}"


def not_comparable_table(run: RunData) -> Iterator[TableBlock]:
    """How cells differ from the others of their study."""
    cells = run.cells[run.cells["not_comparable"] != ""]
    if len(cells):
        yield rows_table(
            "Cells that are not comparable with most cells of the same study",
            ("difference", "cells", "first cell"),
            [
                (words, len(same), str(same["cell"].iloc[0]))
                for words, same in cells.groupby("not_comparable", sort=False)
            ],
        )


def environment_table(run: RunData) -> Iterator[TableBlock]:
    """What numbers depend on besides settings, and the number of cells with each value."""
    every = list(run.environments.values())
    names = dict.fromkeys(name for each in every for name in each)
    if names:
        yield rows_table(
            "What numbers depend on besides settings; only cells with equal values are averaged "
            "and compared",
            ("what", "value (cells)"),
            [(name, values_in_words([each.get(name) for each in every])) for name in names],
        )


def measured_again(attempts: pd.DataFrame) -> pd.DataFrame:
    """The rows of `RunData.attempts` that are valid and that a later attempt of the same job
    replaced, as after a requeue by Slurm.
    """
    in_jobs = attempts[attempts["job"].notna() & attempts["valid"].astype(bool)]
    used = in_jobs["used"].astype(bool)
    theirs = set(zip(in_jobs[used]["cell"], in_jobs[used]["job"], strict=True))
    others = in_jobs[~used]
    places = zip(others["cell"], others["job"], strict=True)
    return others[pd.Series([place in theirs for place in places], others.index, dtype=bool)]
