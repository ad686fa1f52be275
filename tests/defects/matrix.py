"""The matrix: each defect, who catches it in a normal run, and what verification says."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.defects.catalog import DEFECTS, KINDS
from tests.defects.expected import EXPECTED
from tests.defects.folders import FOLDER_DEFECTS
from tests.defects.reading import Outcome
from tests.defects.resumed import RESUME_DEFECTS

README = Path(__file__).parent / "README.md"
BEGIN, END = (
    "<!-- defects: written by `python -m tests.defects --table` -->",
    "<!-- defects end -->",
)
NOT_VERIFIED = {"timing": "takes no times", "generators": "draws nothing from them"}
"""Classes of which verification sees nothing."""


@dataclass(frozen=True)
class Row:
    """What happened to a defect."""

    defect: str
    kind: str
    run: Outcome
    verify: Outcome | None


def kinds() -> dict[str, str]:
    """The class of each defect, by name, classes in the order of `KINDS`."""
    parts: tuple[Mapping[str, Any], ...] = (DEFECTS, RESUME_DEFECTS, FOLDER_DEFECTS)
    found = {name: defect.kind for part in parts for name, defect in part.items()}
    return dict(sorted(found.items(), key=lambda item: KINDS.index(item[1])))


def print_rows(rows: list[Row]) -> Iterator[str]:
    """The matrix of what happened, as lines of text."""
    for kind, group in groupby(rows, lambda row: row.kind):
        yield f"-- {kind}"
        for row in group:
            yield f"{row.defect:<62} {_caught(row.run):<40} {_caught(row.verify)}"


def _caught(outcome: Outcome | None) -> str:
    if outcome is None:
        return "-"
    if outcome.passed:
        return "PASSES"
    return ", ".join(dict.fromkeys(f"{c.by}: {c.verdict}" for c in outcome.complaints))


def readme_block() -> str:
    """The table of this folder's README, from what the tests hold."""
    found = kinds()
    caught = sum(EXPECTED[name].run is not None for name in found)
    lines = [f"{len(found)} defects, {caught} of them caught by a normal run."]
    argued = [(name, EXPECTED[name].argument) for name in found if EXPECTED[name].argument]
    if argued:
        lines += ["Not caught by one, and why not:", ""]
        lines += [f"- *{name}*: {argument}" for name, argument in argued]
    lines += [
        "",
        "| class | defect | caught by, verdict | `verify` |",
        "|---|---|---|---|",
    ]
    for name, kind in found.items():
        expected = EXPECTED[name]
        by = f"{expected.run.by}, {expected.run.verdict}" if expected.run else "**nothing**"
        if name not in DEFECTS:
            verify = ""
        else:
            verify = "yes" if expected.verify else NOT_VERIFIED.get(kind, "no")
        lines.append(f"| {kind} | {name} | {by} | {verify} |")
    return "\n".join([BEGIN, *lines, "", END])


def written_block(text: str) -> str | None:
    """The block that a README has."""
    found = re.search(f"{re.escape(BEGIN)}.*?{re.escape(END)}", text, re.DOTALL)
    return found[0] if found else None


def write_block(path: Path = README) -> None:
    text = path.read_text(encoding="utf-8")
    before = written_block(text)
    assert before is not None, f"{path} has no block of defects"
    path.write_text(text.replace(before, readme_block()), encoding="utf-8")
