"""The first page says what was checked of cells, what they say of one another, what is unlike."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from analysis.cli import main
from analysis.loading.run import load
from analysis.render.document import Folded, TableBlock, Text
from analysis.report.first_page import first_page_section
from analysis.summary.summary_table import summarise
from gnnhpc.records.schema import Check
from tests.analysis.test_cells_together import FOUR, change, loss_from, measured_with, vig
from tests.tools.make_run import Story, make_run


def words_of(root: Path, *, apart: bool = False) -> tuple[str, dict[str, list[list[str]]]]:
    """All paragraphs, and the rows of each table by the beginning of its caption."""
    run = load(root, apart=apart)
    section = first_page_section(run, summarise(run))
    shown = [block for block in section.blocks if not isinstance(block, Folded)]
    folded = [block for block in section.blocks if isinstance(block, Folded)]
    blocks = [*shown, *(inner for block in folded for inner in block.blocks)]
    paragraphs = " ".join(block.text for block in blocks if isinstance(block, Text))
    tables = {
        block.caption.split(":")[0].split(";")[0]: [
            [cell.text for cell in row] for row in block.rows
        ]
        for block in blocks
        if isinstance(block, TableBlock)
    }
    return paragraphs, tables


def test_siblings_that_agree_vouch_for_one_another(tmp_path: Path) -> None:
    said, _ = words_of(make_run(tmp_path / "run", [*FOUR, vig(seed=9)]))
    assert "Across cells: 4 cells have siblings" in said
    assert "agree within what rounding explains. Each was compared over 12 training steps" in said
    assert "1 valid cell has no sibling" in said
    lonely, _ = words_of(make_run(tmp_path / "lonely", [vig()]))
    assert "none vouches for another" in lonely


def test_a_departure_is_on_the_first_page(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", FOUR)
    change(root, FOUR[2], loss_from(5))
    said, tables = words_of(root)
    assert "1 of them leave the others and are invalid" in said
    (row,) = tables["Cells that are not valid, and why"]
    assert "siblings: attempt 1: training loss of step 5" in row[-1]


def test_unlike_cells_and_all_that_numbers_depend_on_are_listed(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", FOUR)
    for cell in FOUR:
        change(root, cell, measured_with(code="aaa", code_from="snapshot"))
    change(root, FOUR[1], measured_with(threads=2, code_from="live"))
    said, tables = words_of(root)
    assert "1 of 4 cells ran live code" in said
    assert "1 cells are unlike the most of their study" in said
    assert "`--apart` shows them" in said
    (row,) = tables["Unlike cells"]
    assert row[:3] == ["threads a rank 2 beside 1", "1", "0"]
    depend = dict(tables["What numbers depend on besides settings"])
    assert depend["threads a rank"] == "1 (3), 2 (1)"
    assert depend["code"] == "aaa"
    assert "implementation" in depend["not recorded, or not there"]
    assert "by `apart`" in words_of(root, apart=True)[0]


def test_self_checks_are_counted_with_their_cost(tmp_path: Path) -> None:
    passed = Check("self-check", "ok", "2 steps are the twin's", {"seconds": 0.4, "share": 0.02})
    failed = Check("self-check", "invalid", "block0.ffn: ...", {"seconds": 0.4, "share": 0.04})
    stories = {FOUR[0].id: [Story(audit=(passed,))], FOUR[1].id: [Story(audit=(failed,))]}
    said, _ = words_of(make_run(tmp_path / "run", FOUR, stories=stories))
    assert "Self-check: 2 of 4 cells that ended" in said
    assert "1 of them failed. It took 3.0% of an attempt, 4.0% at most" in said
    assert (
        "No cell was held against an independent twin"
        in words_of(make_run(tmp_path / "older", FOUR))[0]
    )


def test_the_command_shows_unlike_cells_apart(tmp_path: Path) -> None:
    cells = [vig(repeat=r) for r in range(2)]
    root = make_run(tmp_path / "run", cells)
    change(root, cells[1], measured_with(threads=2))
    assert main(["report", str(root), "--apart", "--out", str(tmp_path / "out")]) == 0
    summary = pd.read_csv(tmp_path / "out" / "summary.csv")
    assert set(summary["apart"].dropna()) == {"threads a rank 2 beside 1"}
    assert set(summary["cells_used"]) == {1}


def test_a_job_that_measured_its_cell_twice_is_told(tmp_path: Path) -> None:
    """As jobs did that were requeued after their result, before they looked for it."""
    seven, eight = ({"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": "0"} for job in "78")
    twice = (Story(slurm=seven), Story(slurm=eight), Story(slurm=eight))
    root = make_run(tmp_path / "run", FOUR[:2], stories={FOUR[0].id: twice})
    _, tables = words_of(root)
    (row,) = [row for row in tables["What was run"] if row[0] == "attempts"]
    said = "1 valid, of jobs that Slurm requeued after their result: the newer counts"
    assert row[1] == f"4 for 2 cells; {said}"
    assert main(["report", str(root)]) == 0
