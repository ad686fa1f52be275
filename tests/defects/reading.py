"""What a result, and the report of its run folder, say of a run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from analysis.load.raised import DAMAGED
from analysis.load.run_data import RunData as Run, load
from analysis.render.document import Document
from analysis.render.markdown import document_to_markdown
from analysis.report.first_page import first_page_section
from analysis.summary.summary_table import summarise
from gnnhpc.core.errors import InputError
from gnnhpc.records.schema import Result

TRUE_REASONS = {"noisy", "drift", "oversubscribed", "cut-short"}
"""Flags that a busy machine of few cores earns, or an attempt that failed, defect or not."""
OF_FEW_STEPS = {"above-bound", "above-bound-unexplained", "above-ideal"}
"""Flags of a summary that ten steps of milliseconds earn."""


@dataclass(frozen=True)
class Complaint:
    """One thing that was found wrong: by which check, or as `failure`; in which words."""

    by: str
    words: str
    verdict: str = "invalid"


@dataclass(frozen=True)
class Outcome:
    """What was said of a run."""

    complaints: Sequence[Complaint]
    passed: bool
    """Whether the measurement would be taken for good: done, valid, without a flag of its own."""

    def has(self, expected: Complaint) -> bool:
        return any(
            (said.by, said.verdict) == (expected.by, expected.verdict)
            and expected.words in said.words
            for said in self.complaints
        )


def judged(result: Result) -> Outcome:
    """What a result says of its run."""
    said = [
        Complaint(check.name, check.detail, check.verdict)
        for check in result.audit
        if check.verdict in ("invalid", "suspect") and check.name not in TRUE_REASONS
    ]
    if result.failure is not None:
        said.append(Complaint("failure", result.failure.error))
    return Outcome(said, passed=result.status == "done" and not said)


def judged_folder(folder: Path) -> Outcome:
    """What reading it, or the first page and the summary of its report, says."""
    try:
        loaded = load(folder)
        summary = summarise(loaded)
    except InputError as error:
        return Outcome([Complaint("reader", str(error))], passed=False)
    text = _first_page(loaded, summary)
    checks = loaded.checks[~loaded.checks["name"].isin(TRUE_REASONS)]
    said = [
        Complaint(_said_by(check["name"]), check["detail"], check["verdict"])
        for check in checks.to_dict("records")
    ]
    raised = ";".join([*loaded.cells["flags"], *summary["flags"]])
    names = {re.sub(r" \d+ of \d+$", "", flag) for flag in raised.split(";")}
    flags = names - {"", *TRUE_REASONS, *OF_FEW_STEPS}
    passed = bool(loaded.cells["valid"].all()) and not said and not flags
    return Outcome([*said, Complaint("report", text, "suspect")], passed)


def _said_by(check: str) -> str:
    """Damaged cells are set apart by whoever reads them."""
    return "reader" if check == DAMAGED else check


def _first_page(run: Run, summary: pd.DataFrame) -> str:
    page = Document("", "", (first_page_section(run, summary),))
    return "\n".join([document_to_markdown(page), *summary["flags"], *summary["note"]])
