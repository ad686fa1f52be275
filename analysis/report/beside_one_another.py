"""Blocks of the first page: what was checked of cells, and what they say of one another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from analysis.across.likeness import values_in_words
from analysis.render.document import TableBlock, Text, rows_table
from gnnhpc.models.model_registry import BUILT_IN

if TYPE_CHECKING:
    from analysis.loading.run import Run


def self_checks(run: Run) -> Iterator[Text]:
    """How many cells were held against a twin at their start, and what it cost."""
    done = run.cells[run.cells["status"] == "done"]
    checked = done[done["self_check"].isin(["ok", "invalid"])]
    if done.empty:
        return
    if checked.empty:
        yield Text("No cell was held against an independent twin at its start (self-check).")
        return
    failed = int((checked["self_check"] == "invalid").sum())
    words = (
        f"Self-check: {len(checked)} of {len(done)} cells that ended were held against an "
        "independent twin at the start of their attempt"
    )
    words += f"; {failed} of them failed" if failed else ", and agree with it"
    shares = checked["self_check_share"].dropna().astype(float)
    if len(shares):
        words += f". It took {shares.median():.1%} of an attempt, {shares.max():.1%} at most"
    yield Text(words + ".", _kind(bad=bool(failed), unsure=len(checked) < len(done)))
    own = sorted({str(label) for label in checked["model"] if label not in BUILT_IN})
    if own:
        yield Text(
            f"Of models of the user's own ({', '.join(own)}) engine, data, loss and evaluation are "
            "checked; their arithmetic is the user's."
        )


def siblings_compared(run: Run) -> Iterator[Text]:
    """How many cells must have learnt the same as another, and how many of them did not."""
    found = run.siblings
    if not found.families:
        if run.cells["valid"].any():
            yield Text(
                "Across cells: no two of them must learn the same, so none vouches for another."
            )
        return
    left = run.checks[run.checks["name"] == "siblings"]["cell"].nunique()
    compared = len(found.compared)
    words = (
        f"Across cells: {compared} cells have siblings, which must have the same losses and "
        "gradient norms step by step, whatever their layout, engine and implementation"
    )
    if left:
        words += f": {left} of them leave the others and are invalid"
    else:
        words += ", and agree within what rounding explains"
    fewest, most = found.steps
    words += f". Each was compared over {most} training steps"
    if fewest < most:
        words += (
            f" or fewer ({fewest} at least): from where rounding has grown so far that it would "
            "explain any difference, nothing is concluded"
        )
    alone = int(run.cells["valid"].sum()) + left - compared
    if alone > 0:
        words += f". {alone} valid cell{'s have' if alone > 1 else ' has'} no sibling"
    yield Text(words + ".", _kind(bad=bool(left), unsure=False))


def likeness(run: Run) -> Iterator[Text]:
    """Whether cells ran live code, and how many are unlike the others."""
    yield from _live_code(run)
    unlike = int((run.cells["difference"] != "").sum())
    if unlike:
        shown = (
            "are rows of their own, by `apart`"
            if "apart" in run.settings
            else ("`--apart` shows them as rows of their own")
        )
        yield Text(
            f"{unlike} cells are unlike the most of their study, so they are in no average and no "
            f"ratio with these; {shown}.",
            "warning",
        )


def unlike_cells(run: Run) -> Iterator[TableBlock]:
    """What unlike cells differ in."""
    cells = run.cells[run.cells["difference"] != ""]
    if len(cells):
        yield rows_table(
            "Unlike cells: what differs from the most cells of the same study",
            ("difference", "cells", "left out", "first cell"),
            [
                (words, len(same), int((~same["counts"]).sum()), str(same["cell"].iloc[0]))
                for words, same in cells.groupby("difference", sort=False)
            ],
        )


def what_numbers_depend_on(run: Run) -> Iterator[TableBlock]:
    """All that numbers depend on besides settings, and in how many cells it was found."""
    facts = list(run.facts.values())
    names = dict.fromkeys(name for each in facts for name in each)
    values = {name: [each.get(name) for each in facts] for name in names}
    known = {name: found for name, found in values.items() if any(v is not None for v in found)}
    unknown = ", ".join(name for name in names if name not in known)
    rows = [(name, values_in_words(found)) for name, found in known.items()]
    if unknown:
        rows.append(("not recorded, or not there", unknown))
    if rows:
        yield rows_table(
            "What numbers depend on besides settings; only cells that are alike in it are averaged "
            "and compared",
            ("what", "found (cells)"),
            rows,
        )


def _live_code(run: Run) -> Iterator[Text]:
    """Whether cells ran the code that the run keeps; older records do not say."""
    known = run.cells[run.cells["code_from"] != ""]
    live = int(known["code_from"].str.contains("live").sum())
    if live:
        yield Text(
            f"{live} of {len(known)} cells ran live code: whatever the checkout held when they "
            "started, not the code that the run keeps. The table of code below says what that was.",
            "warning",
        )


def _kind(*, bad: bool, unsure: bool) -> str:
    return "bad" if bad else "warning" if unsure else "good"
