"""The first section of a report: what the run is worth, what it found, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.figures.draw_figures import Figures
from analysis.load.comparable import SEPARATE
from analysis.load.raised import DAMAGED, EQUIVALENT
from analysis.load.run_data import RunData
from analysis.render.document import (
    Beside,
    Block,
    Folded,
    Section,
    Table,
    Text,
    page_table,
    rows_table,
)
from analysis.render.number_text import join_intervals
from analysis.report.advice import advice_of
from analysis.report.run_facts import what_was_run
from analysis.report.tables import split_backward_in_name
from analysis.statistics.intervals import ONE_RUN, Interval
from analysis.statistics.power import CONFIDENCE
from analysis.summary.settings_in_words import ROW_KEYS, with_study
from gnnhpc.models.model_registry import BUILT_IN


def first_page_section(
    run: RunData, summary: pd.DataFrame, figures: Figures | None = None
) -> Section:
    """The verdict, the speedups, what was checked, each flag with advice, and cells without
    numbers; where the numbers come from is folded.
    """
    checked = [
        *map(Text, run.notes),
        *validation_texts(run),
        *equivalence_texts(run),
        *comparability_texts(run),
    ]
    blocks: list[Block] = [
        *verdict(run.cells),
        *(text for text in checked if text.kind == "bad"),
        *headline(summary, figures or Figures()),
        *(Text(line, "warning") for line in split_backward_in_name(summary)),
        *_torchgpipe_on_cpus(run),
        *(text for text in checked if text.kind != "bad"),
        *flag_tables(run, summary),
        *_cells_without_numbers(run),
        *_not_comparable_table(run),
        Folded("What was run, and what numbers depend on", tuple(what_was_run(run))),
    ]
    return Section("verdict", "Verdict", tuple(blocks))


def verdict(cells: pd.DataFrame) -> Iterator[Text]:
    """How many cells ended how; every cell is counted once."""
    counts = Counter(_how_it_ended(cell) for cell in cells.to_dict("records"))
    valid = counts["clean"] + counts["flagged"]
    parts = [f"{valid} of {len(cells)} cells valid"]
    if counts["flagged"]:
        parts.append(f"{counts['flagged']} of them flagged")
    parts += [f"{counts[kind]} {kind}" for kind in _WITHOUT_NUMBERS if counts[kind]]
    kind = "warning" if counts["flagged"] or valid < len(cells) else "good"
    yield Text(", ".join(parts) + ".", "bad" if counts["invalid"] or not valid else kind)
    waiting = [f"{counts[name]} {name}" for name in ("unfinished", "not started") if counts[name]]
    if waiting:
        yield Text(
            f"This report is preliminary: {' and '.join(waiting)}. `gnnhpc status RUN` shows what "
            "still runs; `gnnhpc rerun RUN --missing` submits the rest.",
            "warning",
        )
    counted = cells[cells["valid"].astype(bool)]
    if len(counted) and counted["flags"].str.split(";").map(lambda f: "shared-node" in f).all():
        yield Text(
            f"All {len(counted)} valid cells shared their node with other jobs, so no speedup here "
            "is the layout's alone. Set `exclusive: true` in the site file, and submit with "
            "`--paired`.",
            "bad",
        )
    damaged = int((cells["status"] == DAMAGED).sum())
    if damaged:
        yield Text(
            f"{damaged} of the invalid cells have damaged records and are set apart: the table "
            "below names file and line.",
            "bad",
        )
    if valid < len(cells):
        yield Text("Only valid cells are in averages, speedups and figures.")


_WITHOUT_NUMBERS = ("invalid", "failed", "unfinished", "not started")


def _how_it_ended(cell: dict[Any, Any]) -> str:
    if cell["valid"]:
        return "flagged" if cell["flags"] else "clean"
    if cell["status"] in ("done", DAMAGED):
        return "invalid"
    return {"missing": "not started", "unfinished": "unfinished"}.get(cell["status"], "failed")


def headline(summary: pd.DataFrame, figures: Figures) -> Iterator[Block]:
    """What was found in a sentence, then the speedup figures next to the table of training."""
    train = summary[summary["phase"] == "train"] if len(summary) else summary
    if train.empty:
        return
    compared = train[train["effect"].notna()]
    if len(compared):
        baselines = ", ".join(dict.fromkeys(map(str, compared["baseline"])))
        yield Text(
            f"{len(compared)} configurations are compared with their baseline ({baselines}). "
            + _found(compared)
        )
    else:
        yield Text("No configuration has a valid baseline to be compared with.")
    yield Beside(figures.of_section("headline"), _headline_table(train))


def _found(compared: pd.DataFrame) -> str:
    """How many configurations differ from their baseline, and how; and which is the fastest."""
    effects = compared["effect"].astype(str)
    kinds = {
        "faster": effects.str.startswith("faster"),
        "slower": effects.str.startswith("slower"),
        "without a difference shown (the interval contains 1)": effects.str.startswith("no diff"),
        "without an interval, so that nothing is said of a difference": effects.str.contains(
            "no interval"
        ),
    }
    counts = [f"{int(found.sum())} {words}" for words, found in kinds.items() if found.any()]
    words = f"Found: {', '.join(counts)}."
    faster = compared[kinds["faster"]]
    if len(faster):
        best = faster.loc[faster["speedup"].idxmax()]
        words += (
            f" The fastest is {best['layout']} m{best['microbatches']} ({best['model']}, "
            f"{best['data']}): {best['speedup']:.2f} times, with a bound of {best['bound']:.2f}."
        )
    return words


def _headline_table(train: pd.DataFrame) -> Table:
    """A row a configuration: step time, speedup, bound, and whether it may be believed."""
    rows = join_intervals(with_study(train))
    for name in ("mean_s", "speedup", "bound"):
        # An estimate without an interval is shown with few digits.
        rows[name] = pd.Series(
            [
                one
                if isinstance(one, Interval)
                else None
                if pd.isna(one)
                else Interval(float(one), None, None)
                for one in rows[name]
            ],
            index=rows.index,
            dtype=object,
        )
    rows["remarks"] = [_remarks(row) for row in train.to_dict("records")]
    shown = {
        **ROW_KEYS,
        "mean_s": "step time (s)",
        "speedup": "speedup",
        "bound": "bound",
        "remarks": "remarks",
    }
    title = (
        "Training: seconds a mini-batch, and speedup of samples a second, with "
        f"{CONFIDENCE:.0%} intervals over runs where there are several"
    )
    return page_table(rows, title, shown, keys=len(ROW_KEYS))


def _remarks(row: dict[Any, Any]) -> str:
    if not row["n"]:
        return "nothing that counts"
    words = [] if row["valid"] else ["not valid"]
    words += [str(row["flags"]).replace(";", ", ")] if row["flags"] else []
    if row["cells_used"] == 1:
        words.append("one run")
    elif row["speedup_from"] == ONE_RUN:
        words.append("baseline of one run")
    return "; ".join(words)


def validation_texts(run: RunData) -> Iterator[Text]:
    """How many cells were validated, what that cost, and which of them were not compared."""
    done = run.cells[run.cells["status"] == "done"]
    unchecked = int((done["checks"] == 0).sum())
    if unchecked:
        words = f"{unchecked} of {len(done)} cells were not validated: their results have no check."
        yield Text(words, "warning")
    known = done.loc[done["checks"] > 0, ["validation_s", "attempt_s"]].dropna().astype(float)
    if len(known):
        took, of = known["validation_s"].sum(), known["attempt_s"].sum()
        most = (known["validation_s"] / known["attempt_s"]).max()
        yield Text(
            f"Validation took {took:.1f} s of the {of:.1f} s of {len(known)} attempts "
            f"({took / of:.1%}; at most {most:.1%} of one), as their results say."
        )
    yield from _what_was_checked(done[done["checks"] > 0])
    custom = sorted({str(label) for label in done["model"] if label not in BUILT_IN})
    if custom and unchecked < len(done):
        yield Text(
            f"For custom models ({', '.join(custom)}) validation checks engine, data, loss and "
            "evaluation; their layers are compared with themselves in one process."
        )
    unsure = run.checks[run.checks["verdict"] == "inconclusive"]
    for detail, cells in unsure.groupby("detail", sort=False)["cell"]:
        yield Text(
            f"Validation could not compare {_some(list(dict.fromkeys(cells)))}: {detail}. "
            + advice_of("inconclusive"),
            "warning",
        )


def _what_was_checked(validated: pd.DataFrame) -> Iterator[Text]:
    """The checks that came to a verdict in all validated cells, and those that did in some."""
    if validated.empty:
        return
    counts = Counter(
        name for names in validated["checked"] for name in set(names.split(";")) if name
    )
    whole = sorted(name for name, count in counts.items() if count == len(validated))
    few = [f"{name} ({n})" for name, n in sorted(counts.items()) if n < len(validated)]
    words = f"Checked in all {len(validated)} validated cells: {', '.join(whole) or 'nothing'}."
    yield Text(words + (f" In some of them: {', '.join(few)}." if few else ""))


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
            "not compared: add a `seq` cell of the same samples a step, with `batch_size` times "
            "the replicas, or for chunks of a graph with the `microbatches` of all replicas.",
            "warning",
        )
    if found.only_repeats:
        yield Text(
            f"Only repeats are equivalent to {_some(found.only_repeats)}. Repeats make the same "
            "mistake, so comparing them shows nothing."
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
    other = int((run.cells["not_comparable"] != "").sum())
    if other:
        shown = "`--separate` shows them as rows of their own"
        if SEPARATE in run.settings:
            shown = f"they are rows of their own, by `{SEPARATE}`"
        yield Text(
            f"{other} cells are not comparable with most others of their model and data, so they "
            f"are in no average and no ratio with these; {shown}.",
            "warning",
        )


def _some(cells: Sequence[str]) -> str:
    """The number of cells, with the first one's id."""
    return f"cell {cells[0]}" if len(cells) == 1 else f"{len(cells)} cells, such as {cells[0]}"


def _torchgpipe_on_cpus(run: RunData) -> Iterator[Text]:
    cells = run.cells
    chosen = (cells["engine"] == "torchgpipe") & (cells["device"] == "cpu") & (cells["stages"] > 1)
    if chosen.any():
        yield Text(
            f"Engine torchgpipe on a CPU ({int(chosen.sum())} cells): all stages of a replica are "
            "one process there and share one worker, so its chunks bring no speed, whatever the "
            "bound says."
        )


_FLAGS_OF_ROWS = ("above-bound-unexplained", "above-bound", "above-ideal", "only-warm-up")


def flag_tables(run: RunData, summary: pd.DataFrame) -> Iterator[Block]:
    """Flags of cells, then those of comparing cells, each with one line of advice."""
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for cell, name, kind, detail in run.checks.itertuples(index=False):
        found.setdefault((name, kind), []).append((cell, detail))
    order = sorted(found.items(), key=lambda item: (item[0][1] != "invalid", -len(item[1])))
    if order:
        yield rows_table(
            "Flags of cells: an invalid cell is in no average, and so is one that is not "
            "comparable; cells with another flag are",
            ("flag", "verdict", "cells", "what to do", "what was found (first cell)", "first cell"),
            [
                (name, kind, len(cells), advice_of(name, kind), cells[0][1], cells[0][0])
                for (name, kind), cells in order
            ],
        )
    elif run.cells["valid"].any():
        yield Text("No cell has a flag.")
    if summary.empty:
        return
    own = summary["flags"].str.extract(f"({'|'.join(_FLAGS_OF_ROWS)})")[0]
    rows = with_study(summary).assign(advice=[advice_of(str(flag)) for flag in own])
    rows = rows[own.notna()].sort_values("valid", kind="stable")
    if len(rows):
        names = ("phase", "speedup", "bound", "efficiency", "valid", "flags", "note")
        yield page_table(
            rows,
            "Flags from comparing cells: speedups above the bound with their explanation, "
            "efficiencies above 1, and rows without a step after warm-up",
            ROW_KEYS | {name: name for name in names} | {"advice": "what to do"},
            keys=len(ROW_KEYS),
        )


def _cells_without_numbers(run: RunData) -> Iterator[Table]:
    """Each cell that is not valid, and why."""
    invalid = run.checks[run.checks["verdict"] == "invalid"]
    reasons = (invalid["name"] + ": " + invalid["detail"]).groupby(invalid["cell"]).agg("; ".join)
    cells = run.cells[~run.cells["valid"].astype(bool)]
    if len(cells):
        yield rows_table(
            "Cells that are not valid, and why",
            ("cell", "layout", "micro-batches", "status", "attempts", "reason"),
            [
                (
                    str(cell["cell"]),
                    cell["layout"],
                    cell["microbatches"],
                    _how_it_ended(cell),
                    cell["attempts"],
                    reasons.get(str(cell["cell"])) or _reason_not_valid(cell),
                )
                for cell in cells.to_dict("records")
            ],
        )


def _reason_not_valid(cell: dict[Any, Any]) -> str:
    if cell["status"] == "missing":
        return "no attempt"
    if not pd.isna(cell["failure"]) and cell["failure"]:
        return str(cell["failure"])
    if cell["status"] == "unfinished":
        return "its attempts have not ended, or died without a result"
    return "its result gives no reason"


def _not_comparable_table(run: RunData) -> Iterator[Table]:
    """How cells differ from the others of their model and data."""
    cells = run.cells[run.cells["not_comparable"] != ""]
    if len(cells):
        yield rows_table(
            "Cells that are not comparable with most cells of the same model and data",
            ("difference", "cells", "first cell"),
            [
                (words, len(same), str(same["cell"].iloc[0]))
                for words, same in cells.groupby("not_comparable", sort=False)
            ],
        )
