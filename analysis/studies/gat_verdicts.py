"""Verdicts on Dearing and Wang's tables of GAT: published, ours, the bound, what can be told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from analysis.render.document import Table
from analysis.statistics.pairs import FEWEST_PAIRS
from analysis.studies.conclusions import conclusions_frame, finding_row
from analysis.studies.gat_claims import CLAIMS
from analysis.studies.gat_findings import gat_findings
from analysis.studies.gat_runs import GatRows
from analysis.studies.study import published_studies, read_published, study_notes

_COMPUTED_AGAIN = (
    "Under checkpoint except_last, which is torchgpipe's default, k chunks compute k - 1 of their "
    "forwards again and one chunk none: more chunks take longer for that too (recompute_s)."
)


def gat_verdict_rows(rows: GatRows) -> Iterator[dict[str, Any]]:
    """Rows of the corrected study for tables 2 and 3."""
    yield from _accuracies(rows)
    for finding in gat_findings(rows):
        yield {"study": "dearing", "model": "gat", **finding_row(finding)}


def gat_conclusions(rows: GatRows) -> Table:
    """A row a conclusion: the range of the published numbers and of ours, and how it comes out."""
    findings = gat_findings(rows)
    frame = conclusions_frame(CLAIMS, findings)
    notes = study_notes(published_studies()["dearing"], "edges", "rebuild", "devices")
    if any(row.settings["activation_checkpointing"] == "except_last" for row in rows):
        notes = (*notes, _COMPUTED_AGAIN)
    rule = f"A verdict rests on intervals over {FEWEST_PAIRS} runs or more; the corrected study "
    return Table(
        "dearing_conclusions",
        "Dearing and Wang's conclusions, and those that follow from chunks without lost edges",
        frame,
        (*notes, f"{rule}lists all comparisons."),
    )


def _accuracies(rows: GatRows) -> Iterator[dict[str, Any]]:
    """Table 2: test accuracy on one device, the whole graph at once."""
    for printed in read_published("dearing_table2_single_device").to_dict("records"):
        key = (str(printed["dataset"]).lower(), printed["compute"], printed["framework"])
        common = {
            "study": "dearing",
            "table": "2",
            "model": "gat",
            "setting": f"{key[0]}, one {key[1]}, {key[2]}",
            "phase": "test",
            "quantity": "test_accuracy",
            "published": printed["test_acc"],
            "verdict": "Published: one run, whose optimizer and seed are not given",
        }
        measured = [
            row
            for row in rows.on_one_device
            if (row.data, row.compute, row.framework) == key and "test_accuracy" in row.learnt
        ]
        for row in measured:
            yield {
                **common,
                "ours": row.learnt["test_accuracy"],
                "ours_low": row.learnt["test_accuracy_low"],
                "ours_high": row.learnt["test_accuracy_high"],
                "run": row.label,
            }
        if not measured:
            yield common
