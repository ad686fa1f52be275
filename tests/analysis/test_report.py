"""A report: its files, what the first page says, and figures that fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

import analysis
from analysis.load.run_data import load_run
from analysis.render.document import Document
from analysis.render.pages import document_to_markdown
from analysis.report.first_page import first_page_section
from analysis.report.report import write_report
from analysis.report.texts import texts
from analysis.studies.study_tables import study_tables
from analysis.summary.summary_table import CONTRACT_COLUMNS, summarize
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from tests.analysis.conftest import GOLDEN, experiments_of
from tests.tools.make_run import Story, make_run

FIGURES = {
    "images": {
        *("speedup", "efficiency", "bubble", "waterfall", "step-times", "loss", "timeline"),
        *("strong-scaling", "weak-scaling", "memory", "learning-over-time"),
    },
    "chunks": {
        *("speedup", "efficiency", "bubble", "waterfall", "step-times", "loss", "timeline"),
        *("framework-time", "chunk-time", "chunk-accuracy"),
    },
    "sampled": {"epoch-time", "speedup", "step-times", "loss"},
}
TABLES = {
    "images": {"speedup", "efficiency", "lost_time", "noise", "raffi_tables", "corrected_study"},
    "chunks": {"speedup", "efficiency", "lost_time", "noise", "frameworks", "dearing_table3"},
    "sampled": {"speedup", "noise", "sampled", "boca_table2", "boca_conclusions"},
}


@pytest.mark.parametrize("name", list(GOLDEN))
def test_a_report_has_its_tables_and_figures(reports: dict[str, Path], name: str) -> None:
    folder = reports[name]
    summary = pd.read_csv(folder / "summary.csv")
    assert tuple(summary.columns[: len(CONTRACT_COLUMNS)]) == CONTRACT_COLUMNS
    assert {"layout", "wall_s", "kept", "valid"} <= set(pd.read_parquet(folder / "steps.parquet"))
    for kind in FIGURES[name]:
        pictures = sorted((folder / "figures").glob(f"{kind}-*.png"))
        assert pictures, kind
        for picture in pictures:
            with Image.open(picture) as image:
                assert image.width > 500 and image.convert("L").getextrema() != (255, 255)
            assert picture.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    for table in TABLES[name]:
        for ending in ("csv", "md", "tex"):
            assert (folder / "tables" / f"{table}.{ending}").stat().st_size > 0
    page = (folder / "report.md").read_text()
    assert all(f"figures/{kind}-" in page for kind in FIGURES[name])
    zero = "Each rank's own exit from the step's first barrier is its zero."
    assert (zero in page) == ("timeline" in FIGURES[name])
    assert (folder / "report.html").stat().st_size > 100_000


def first_page(root: Path) -> str:
    run = load_run(root)
    section = first_page_section(summarize(run))
    return document_to_markdown(Document("Report", "", (section,), root))


def one_cell_with(tmp_path: Path, story: Story, name: str = "chunks") -> tuple[Path, str]:
    experiments = experiments_of(name, repeats=1)
    stories = {experiments[0].id: [story]}
    return make_run(tmp_path / "run", experiments, stories=stories), experiments[0].id


@pytest.mark.parametrize(
    ("story", "words"),
    [
        (
            Story(audit=(Check("engine-parity", "inconclusive", "the model uses F.dropout"),)),
            "| engine-parity | inconclusive | 1 |",
        ),
        (
            Story(audit=(Check("engine-parity", "invalid", "outputs differ"),)),
            "engine-parity: outputs differ",
        ),
        (Story(audit=(Check("noisy", "suspect", "12 % stolen"),)), "12 % stolen"),
        (Story(status="failed", stop_at=3), "RuntimeError: planted"),
        (Story(finished=False, stop_at=3), "its attempts have not ended"),
        (Story(finished=False, stop_at=3), "5 of 6 cells valid, 1 unfinished."),
        (Story(finished=False, stop_at=3), "This report is preliminary: 1 unfinished."),
        (Story(header={"threads": 9}), "threads a rank 9, elsewhere 1"),
        (Story(header={"code_from": "live"}), "ran live code"),
    ],
)
def test_the_first_page_says_what_is_wrong_with_a_cell(
    tmp_path: Path, story: Story, words: str
) -> None:
    root, cell = one_cell_with(tmp_path, story)
    page = first_page(root)
    assert words.format(cell=cell) in page
    assert cell in page or "live" in words


@pytest.mark.parametrize(
    ("check", "advice"),
    [
        (Check("oversubscribed", "suspect", "2 CPUs for 4 threads"), "raise `cpus_per_task`"),
        (Check("shared-node", "suspect", "other jobs on n1"), "Set `exclusive: true`"),
        (Check("edges-lost", "suspect", "51 % kept"), "Set `chunks: halo` in the sweep"),
        (Check("engine-parity", "inconclusive", "F.dropout"), "`gnnhpc.Dropout` for `F.dropout`"),
        (Check("losses", "invalid", "replicas differ"), "Do not use these numbers"),
        (Check("new-flag", "suspect", "something"), "`gnnhpc rerun RUN --flagged`"),
    ],
)
def test_each_flag_has_one_line_of_advice(tmp_path: Path, check: Check, advice: str) -> None:
    root, cell = one_cell_with(tmp_path, Story(audit=(check,)))
    (line,) = [
        line for line in first_page(root).splitlines() if line.startswith(f"| {check.name} |")
    ]
    assert advice in line.replace("\\", "")
    assert cell in line and check.detail in line


def test_advice_names_flags_that_exist() -> None:
    """Each name is that of a check or flag somewhere in the sources."""
    sources = Path(analysis.__file__).parents[1]
    text = "".join(
        path.read_text()
        for folder in ("gnnhpc", "analysis")
        for path in (sources / folder).rglob("*.py")
    )
    assert [name for name in texts()["advice"] if f'"{name}' not in text] == []


def test_the_page_says_what_was_checked(folders: dict[str, Path]) -> None:
    page = first_page(folders["images"])
    (line,) = [line for line in page.splitlines() if line.startswith("Checked in 24 cells")]
    (result, *_) = folders["images"].glob("cells/*/attempt-1/result.json")
    assert all(each["name"] in line for each in json.loads(result.read_text())["audit"])


def test_published_studies_are_named_only_where_their_model_and_data_were_run(
    reports: dict[str, Path], tmp_path: Path
) -> None:
    assert "Raffi" in (reports["images"] / "report.md").read_text()
    experiments = [
        Experiment.model_validate(
            GOLDEN["images"][0] | {"data": {"name": "synthetic-cifar10"}} | change
        )
        for change in ({}, {"layout": "dp2-pp2", "microbatches": 5})
    ]
    page = write_report([make_run(tmp_path / "run", experiments)])[1] / "report.md"
    text = page.read_text()
    assert "figures/copies-" in text
    assert not [name for name in ("Raffi", "Dearing", "Boca", "ublished") if name in text]


def test_a_study_is_compared_with_its_own_data_alone(tmp_path: Path) -> None:
    base = GOLDEN["images"][0]
    experiments = [
        Experiment.model_validate(base | {"data": {"name": name}})
        for name in ("cifar10", "synthetic-cifar10")
    ]
    tables = study_tables(summarize(load_run(make_run(tmp_path / "run", experiments))))
    (table,) = [table for table in tables if table.name == "raffi_tables"]
    runs = table.frame["run"].dropna()
    assert len(runs) == 4 and not runs.str.contains("synthetic").any()


@pytest.mark.parametrize("changes", [{"layout": "pp2", "microbatches": 4}, {}])
def test_the_first_page_claims_no_comparison_that_was_not_made(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    """A run of pipelines alone, and one of repeats of a sequential cell."""
    base = GOLDEN["chunks"][0]
    experiments = [Experiment.model_validate(base | changes | {"repeat": r}) for r in range(2)]
    page = first_page(make_run(tmp_path / "run", experiments))
    assert "No cell was compared with another one that must learn the same." in page
    assert "agree" not in page


def test_cells_that_were_not_validated_are_warned_of(tmp_path: Path) -> None:
    from tests.tools.result_files import rewrite_result

    root = make_run(tmp_path / "run", experiments_of("chunks", repeats=1))
    for result in root.glob("cells/*/attempt-1/result.json"):
        rewrite_result(result, lambda raw: raw.update(audit=[]))
    assert "6 of 6 cells were not validated" in first_page(root)


def test_several_runs_make_one_report_and_leave_other_files(tmp_path: Path) -> None:
    experiments = [one for one in experiments_of("sampled", repeats=2) if one.layout.replicas == 1]
    roots = [make_run(tmp_path / name, experiments, seed=len(name)) for name in ("a", "bb")]
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "notes.txt").write_text("mine")
    summary, folder = write_report(roots, tmp_path / "both")
    assert summary.run.name == "a + bb"
    assert (summary.table["cells"] == 4).all()
    assert "Report of a + bb" in (folder / "report.md").read_text()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_run_without_results_has_a_report(tmp_path: Path) -> None:
    experiments = experiments_of("chunks", repeats=1)
    root = make_run(tmp_path / "run", experiments, stories={one.id: [] for one in experiments})
    summary, folder = write_report([root])
    assert (summary.table["n"] == 0).all()
    assert "0 of 6 cells valid" in (folder / "report.md").read_text()
