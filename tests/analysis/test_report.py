"""A report: its files, what the first page says, and figures that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from analysis.load.run_data import RunData, load_run
from analysis.render.document import Document
from analysis.render.markdown import document_to_markdown
from analysis.report.first_page import first_page_section
from analysis.report.report import write_report
from analysis.report.tables import make_tables
from analysis.studies.study import studies_of
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
        *("framework-time", "framework-accuracy", "chunk-time", "chunk-accuracy", "chunk-loss"),
    },
    "sampled": {"epoch-time", "epoch-speedup", "step-parts", "step-times", "loss"},
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
    assert (folder / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        ("images", {"dearing_table2", "boca_table2", "boca_conclusions"}),
        ("chunks", {"raffi_tables", "boca_table2"}),
        ("sampled", {"raffi_tables", "dearing_table2"}),
    ],
)
def test_studies_of_other_models_are_left_out(
    reports: dict[str, Path], name: str, absent: set[str]
) -> None:
    tables = {path.stem for path in (reports[name] / "tables").iterdir()}
    assert not absent & tables


def first_page(root: Path) -> str:
    run = load_run(root)
    section = first_page_section(run, summarize(run).table)
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
            "Validation could not compare cell {cell}: the model uses F.dropout.",
        ),
        (
            Story(audit=(Check("engine-parity", "invalid", "outputs differ"),)),
            "engine-parity: outputs differ",
        ),
        (Story(audit=(Check("noisy", "suspect", "12 % stolen"),)), "12 % stolen"),
        (Story(status="failed", stop_at=3), "RuntimeError: planted"),
        (Story(finished=False, stop_at=3), "its attempts have not ended"),
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


def test_the_first_page_says_what_validation_cost_and_compared(
    reports: dict[str, Path],
) -> None:
    page = (reports["images"] / "report.md").read_text()
    assert "of 24 attempts (0.5%; at most 0.5% of one), as their results say." in page
    assert "12 cells were compared with the sequential cell" in page
    assert "24 of 24 cells valid" in page


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
    run, summary, folder = write_report(roots, tmp_path / "both")
    assert run.name == "a + bb"
    assert (summary["cells"] == 4).all()
    assert "Report of a + bb" in (folder / "report.md").read_text()
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_run_without_results_has_a_report(tmp_path: Path) -> None:
    experiments = experiments_of("chunks", repeats=1)
    root = make_run(tmp_path / "run", experiments, stories={one.id: [] for one in experiments})
    _, summary, folder = write_report([root])
    assert (summary["n"] == 0).all()
    assert "0 of 6 cells valid" in (folder / "report.md").read_text()


def test_pages_hold_their_numbers(reports: dict[str, Path], images: RunData) -> None:
    page = (reports["images"] / "report.html").read_text()
    assert "<html" in page and "speedup" in page
    assert images.name in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_generated_images_are_not_compared_with_a_published_study(tmp_path: Path) -> None:
    data = {"name": "synthetic-cifar10", "image_size": 16}
    experiment = Experiment.model_validate(GOLDEN["images"][0] | {"data": data})
    run = load_run(make_run(tmp_path / "run", [experiment]))
    assert studies_of(run) == []
    assert [table.name for table in make_tables(summarize(run))] == [
        *("speedup", "efficiency", "noise", "lost_time"),
    ]
