"""Facts of a report's numbers: what was run and checked, and on what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from analysis.load.comparable import values_in_words
from analysis.load.concat_runs import provenance_text
from analysis.load.flags import EQUIVALENT
from analysis.load.run_data import RunData
from analysis.render.document import Table, Text, rows_table

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
    """How many cells were validated, by which checks, and what that cost."""
    done = run.cells[run.cells["status"] == "done"]
    validated = done[done["checks"] > 0]
    if len(validated) < len(done):
        without = len(done) - len(validated)
        words = f"{without} of {len(done)} cells were not validated: their results have no check."
        yield Text(words, "warning")
    if len(validated):
        counts = Counter(
            name for names in validated["checked"] for name in set(names.split(";")) if name
        )
        names = [
            name if count == len(validated) else f"{name} ({count})"
            for name, count in sorted(counts.items())
        ]
        took, of = validated["validation_s"].sum(), validated["attempt_s"].sum()
        cost = f", in {took:.1f} s of the {of:.1f} s of their attempts" if of > 0.0 else ""
        yield Text(f"Checked in {len(validated)} cells{cost}: {', '.join(names) or 'nothing'}.")


def equivalence(run: RunData) -> Iterator[Text]:
    """How many cells were compared with the sequential cell that must learn the same."""
    steps = run.cells["compared_steps"].dropna().astype(int)
    left = run.checks[run.checks["name"] == EQUIVALENT]["cell"].nunique()
    if len(steps) or left:
        words = "All losses and gradient norms agree within the envelope."
        if left:
            words = f"{left} cells leave the envelope and are invalid."
        yield Text(
            f"Equivalent cells: {len(steps)} cells were compared with the sequential cell that "
            f"must learn the same, over their first {steps.min()} training steps or more; later, "
            f"rounding explains any difference. {words}",
            "bad" if left else "good",
        )
    elif run.cells["valid"].any():
        words = "No cell was compared with another one that must learn the same."
        yield Text(words, "warning")
    alone = run.cells.loc[run.cells["no_sequential_cell"], "cell"]
    if len(alone):
        yield Text(
            f"No sequential cell is equivalent to {len(alone)} cells, such as {alone.iloc[0]}, so "
            "they are not compared: add a `seq` cell of the same samples a step, with `batch_size` "
            "times the replicas, or for chunks of a graph with the `microbatches` of all replicas.",
            "warning",
        )


def live_code(run: RunData) -> Iterator[Text]:
    """How many cells ran live code."""
    live = int(run.cells["code_from"].str.contains("live").sum())
    if live:
        yield Text(
            f"{live} cells ran live code: what the checkout held when they started, not the code "
            "that the run keeps.",
            "warning",
        )


def what_was_run(run: RunData) -> Iterator[Table]:
    """Provenance, models and data, and hosts; and the environments of the cells."""
    provenance = run.provenance or {}
    rows = [("run", run.name)]
    rows += [(words, provenance_text(provenance.get(key))) for key, words in _PROVENANCE.items()]
    rows.append(
        ("models and data", ", ".join(sorted(set(run.cells["model"] + " on " + run.cells["data"]))))
    )
    rows.append(("ran on", some_hosts(run)))
    yield rows_table("What was run", ("what", "value"), [row for row in rows if row[1]])
    every = list(run.environments.values())
    if names := dict.fromkeys(name for each in every for name in each):
        yield rows_table(
            "What numbers depend on besides settings; only cells with equal values are averaged "
            "and compared",
            ("what", "value (cells)"),
            [(name, values_in_words([each.get(name) for each in every])) for name in names],
        )


def some_hosts(run: RunData) -> str:
    """The first hosts that ran cells, and how many more there are."""
    hosts = sorted({host for text in run.cells["hosts"] for host in str(text).split(";") if host})
    more = f" and {len(hosts) - _MOST_HOSTS} more" if len(hosts) > _MOST_HOSTS else ""
    return ", ".join(hosts[:_MOST_HOSTS]) + more
