"""Facts of a report's numbers: what was run and checked, on what, and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from analysis.load.comparable import values_in_words
from analysis.load.concat_runs import provenance_text
from analysis.load.equivalent_cells import NO_SEQUENTIAL, ONLY_REPEATS
from analysis.load.flags import EQUIVALENT
from analysis.load.run_data import RunData
from analysis.render.document import Block, Table, Text, rows_table
from gnnhpc.models.model_registry import BUILT_IN

_PROVENANCE = {
    "commit": "code",
    "command": "command",
    "spec": "sweep",
    "overrides": "overrides",
    "created_at": "submitted at",
    "host": "submitted on",
    "user": "submitted by",
    "versions": "versions",
}
_MOST_HOSTS = 12


def validation(run: RunData) -> Iterator[Text]:
    """How many cells were validated, what that cost, and which of them were not compared."""
    done = run.cells[run.cells["status"] == "done"]
    validated = done[done["checks"] > 0]
    unchecked = len(done) - len(validated)
    if unchecked:
        words = f"{unchecked} of {len(done)} cells were not validated: their results have no check."
        yield Text(words, "warning")
    known = validated[["validation_s", "attempt_s"]].dropna().astype(float)
    if len(known):
        took, of = known["validation_s"].sum(), known["attempt_s"].sum()
        most = (known["validation_s"] / known["attempt_s"]).max()
        yield Text(
            f"Validation took {took:.1f} s of the {of:.1f} s of {len(known)} attempts "
            f"({took / of:.1%}; at most {most:.1%} of one), as their results say."
        )
    if len(validated):
        counts = Counter(
            name for names in validated["checked"] for name in set(names.split(";")) if name
        )
        whole = sorted(name for name, count in counts.items() if count == len(validated))
        few = [f"{name} ({n})" for name, n in sorted(counts.items()) if n < len(validated)]
        words = f"Checked in all {len(validated)} validated cells: {', '.join(whole) or 'nothing'}."
        yield Text(words + (f" In some of them: {', '.join(few)}." if few else ""))
    custom = sorted({str(label) for label in validated["model"] if label not in BUILT_IN})
    if custom:
        yield Text(
            f"For custom models ({', '.join(custom)}) validation checks engine, data, loss and "
            "evaluation; their layers are compared with themselves in one process."
        )


def equivalence(run: RunData) -> Iterator[Text]:
    """How many cells were compared with the sequential cell that must learn the same."""
    steps = run.cells["compared_steps"].dropna().astype(int)
    left = run.checks[run.checks["name"] == EQUIVALENT]["cell"].nunique()
    if len(steps) or left:
        fewest, most = min(steps, default=0), max(steps, default=0)
        span = f"{most}" if fewest == most else f"{fewest} to {most}"
        words = ". All losses and gradient norms agree within the envelope."
        if left:
            words = f". {left} cells leave the envelope and are invalid."
        yield Text(
            f"Equivalent cells: {len(steps)} cells were compared with the sequential cell "
            f"that must learn the same, over their first {span} training steps; later, rounding "
            f"explains any difference{words}",
            "bad" if left else "good",
        )
    elif run.cells["valid"].any():
        words = "No cell was compared with another one that must learn the same."
        yield Text(words, "warning")
    alone, repeats = (
        list(run.cells.loc[run.cells["equivalents"] == which, "cell"])
        for which in (NO_SEQUENTIAL, ONLY_REPEATS)
    )
    if alone:
        yield Text(
            f"No sequential cell is equivalent to {_some(alone)}, so they are "
            "not compared: add a `seq` cell of the same samples a step, with `batch_size` times "
            "the replicas, or for chunks of a graph with the `microbatches` of all replicas.",
            "warning",
        )
    if repeats:
        yield Text(
            f"Only repeats are equivalent to {_some(repeats)}. Repeats make the same "
            "mistake, so comparing them shows nothing."
        )


def live_code(run: RunData) -> Iterator[Text]:
    """How many cells ran live code."""
    known = run.cells[run.cells["code_from"] != ""]
    if live := int(known["code_from"].str.contains("live").sum()):
        yield Text(
            f"{live} of {len(known)} cells ran live code: what the checkout held when they "
            "started, not the code that the run keeps.",
            "warning",
        )


def _some(cells: Sequence[str]) -> str:
    """The number of cells, with the first one's id."""
    return f"cell {cells[0]}" if len(cells) == 1 else f"{len(cells)} cells, such as {cells[0]}"


def what_was_run(run: RunData) -> Iterator[Block]:
    """Commit, versions, machines, models, data and layouts; environments."""
    yield _facts_table(run)
    every = list(run.environments.values())
    if names := dict.fromkeys(name for each in every for name in each):
        yield rows_table(
            "What numbers depend on besides settings; only cells with equal values are averaged "
            "and compared",
            ("what", "value (cells)"),
            [(name, values_in_words([each.get(name) for each in every])) for name in names],
        )


def _facts_table(run: RunData) -> Table:
    cells, provenance = run.cells, run.provenance
    rows: list[tuple[str, str]] = [("run", run.name)]
    if provenance is None:
        rows.append(("submitted", "unknown: the run has no provenance.json"))
    for key, words in _PROVENANCE.items():
        if key in (provenance or {}):
            rows.append((words, provenance_text((provenance or {})[key])))
    rows += [
        ("models and data", ", ".join(sorted(set(cells["model"] + " on " + cells["data"])))),
        ("implementations", _distinct(cells["implementation"])),
        ("layouts", _distinct(cells["layout"])),
        ("ran on", some_hosts(run)),
        ("attempts", f"{int(cells['attempts'].sum())} for {len(cells)} cells"),
        ("it cost", _cost_text(run)),
    ]
    return rows_table("What was run", ("what", "value"), [row for row in rows if row[1]])


def some_hosts(run: RunData) -> str:
    """The first hosts that ran cells, and how many more there are."""
    hosts = sorted({host for text in run.cells["hosts"] for host in str(text).split(";") if host})
    more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
    return ", ".join(hosts[:_MOST_HOSTS]) + more


def _distinct(values: pd.Series[Any]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if str(value)))


def _cost_text(run: RunData) -> str:
    """Core-hours as the results have them; `status --cost` has those of Slurm's accounting."""
    known = run.attempts["core_s"].dropna()
    if known.empty:
        return ""
    return (
        f"{known.sum() / 3600:.3g} core-hours of the {len(known)} attempts with a result, from "
        "their ranks' start to it"
    )
