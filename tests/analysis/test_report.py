"""A report: its files, and what the first page says."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

import analysis
from analysis.load.run_data import load_run
from analysis.render.document import Document
from analysis.render.formats import document_to_markdown
from analysis.report.first_page import first_page_section
from analysis.report.report import write_report
from analysis.report.sections import texts
from analysis.studies.study_tables import study_tables
from analysis.summary.summary_csv_columns import CONTRACT_COLUMNS
from analysis.summary.summary_table import summarize
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.records.schema import Check
from tests.analysis.conftest import GOLDEN, experiments_of
from tests.tools.make_run import Story, make_run, rewrite_result

SHOWN = {
    "images": ({"waterfall", "timeline", "weak-scaling"}, {"lost_time", "raffi_tables"}),
    "chunks": ({"chunk-time", "framework-time"}, {"frameworks", "dearing_table3"}),
    "sampled": ({"epoch-time", "step-times"}, {"sampled", "boca_table2", "boca_conclusions"}),
}
"""Of each golden run, figures and tables that others lack."""


@pytest.mark.parametrize("name", list(GOLDEN))
def test_a_report_has_its_tables_and_figures(reports: dict[str, Path], name: str) -> None:
    folder, (figures, tables) = reports[name], SHOWN[name]
    summary = pd.read_csv(folder / "summary.csv")
    assert tuple(summary.columns[: len(CONTRACT_COLUMNS)]) == CONTRACT_COLUMNS
    assert {"layout", "wall_s", "kept", "valid"} <= set(pd.read_parquet(folder / "steps.parquet"))
    for picture in (folder / "figures").glob("*.png"):
        with Image.open(picture) as image:
            assert image.width > 500 and image.convert("L").getextrema() != (255, 255)
        assert picture.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    for table in {"speedup", "noise", "corrected_study"} | tables:
        for ending in ("csv", "md", "tex"):
            assert (folder / "tables" / f"{table}.{ending}").stat().st_size > 0
    page = (folder / "report.md").read_text()
    assert all(f"figures/{kind}-" in page for kind in {"speedup", "loss"} | figures)
    assert (folder / "report.html").stat().st_size > 100_000


def test_published_numbers_stand_beside_ours_with_their_defects(reports: dict[str, Path]) -> None:
    """Numbers of Raffi's table 5, whose speedup is above the bound."""
    corrected = pd.read_csv(reports["images"] / "tables" / "corrected_study.csv")
    rows = corrected[corrected["setting"] == "pp2, 5 micro-batches"]
    row = rows[rows["phase"] == "train"].iloc[0]
    assert (row["table"], row["published"], row["bound"]) == (
        *(5, pytest.approx(37.44 / 19.02), pytest.approx(5 / 3)),
    )
    assert row["ours_low"] <= row["ours"] <= row["ours_high"]
    assert row["verdict"].startswith("Published is above the bound: gradients did not cross")
    page = (reports["images"] / "report.md").read_text()
    assert "Gradients did not cross stage boundaries: an evaluation schedule" in page
    conclusions = pd.read_csv(reports["chunks"] / "tables" / "dearing_conclusions.csv")
    lost = conclusions.set_index("conclusion").loc["Chunks of consecutive nodes cost accuracy"]
    assert lost["published"] == "0.178 to 0.320"


def first_page(root: Path) -> str:
    section = first_page_section(summarize(load_run(root)))
    return document_to_markdown(Document("Report", "", (section,), root))


def check(name: str, verdict: str, detail: str) -> Story:
    return Story(audit=(Check(name, verdict, detail),))  # type: ignore[arg-type]


def test_the_first_page_says_what_is_wrong_with_each_cell(tmp_path: Path) -> None:
    fates = [
        (check("engine-parity", "inconclusive", "the model uses F.dropout"), "`gnnhpc.Dropout`"),
        (check("engine-parity", "invalid", "outputs differ"), "engine-parity: outputs differ"),
        (check("losses", "invalid", "they differ"), "Do not use these numbers"),
        (check("noisy", "suspect", "12 % stolen"), "12 % stolen"),
        (check("edges-lost", "suspect", "51 %"), "Set `chunks: halo` in the sweep"),
        (check("new-flag", "suspect", "words"), "`gnnhpc rerun RUN --flagged`"),
        (Story(status="failed", stop_at=3), "RuntimeError: planted"),
        (Story(finished=False, stop_at=3), "This report is preliminary: 1 unfinished."),
        (Story(header={"threads": 9}), "threads a rank 9, elsewhere 1"),
        (Story(header={"code_from": "live"}), "1 cells ran live code"),
    ]
    experiments = experiments_of("chunks", repeats=2)
    stories = {one.id: [story] for one, (story, _) in zip(experiments, fates, strict=False)}
    page = first_page(make_run(tmp_path / "run", experiments, stories=stories)).replace("\\", "")
    assert [words for _, words in fates if words not in page] == []
    assert "8 of 12 cells valid, 5 of them flagged, 2 invalid, 1 failed, 1 unfinished." in page
    assert all(experiments[place].id in page for place in (1, 2, 6, 7))


def test_advice_names_flags_that_exist() -> None:
    """Each name is that of a check or flag somewhere in the sources."""
    sources = Path(analysis.__file__).parents[1]
    text = "".join(
        path.read_text()
        for folder in ("gnnhpc", "analysis")
        for path in (sources / folder).rglob("*.py")
    )
    assert [name for name in texts()["advice"] if f'"{name}' not in text] == []


def test_the_page_says_what_was_checked(folders: dict[str, Path], tmp_path: Path) -> None:
    page = first_page(folders["images"])
    (line,) = [line for line in page.splitlines() if line.startswith("Checked in 24 cells")]
    (result, *_) = folders["images"].glob("cells/*/attempt-1/result.json")
    assert all(each["name"] in line for each in json.loads(result.read_text())["audit"])
    root = make_run(tmp_path / "run", experiments_of("chunks", repeats=1))
    for result in root.glob("cells/*/attempt-1/result.json"):
        rewrite_result(result, lambda raw: raw.update(audit=[]))
    assert "6 of 6 cells were not validated" in first_page(root)


def test_a_study_is_compared_with_its_own_data_alone(tmp_path: Path) -> None:
    base = GOLDEN["images"][0]
    both = [
        Experiment.model_validate(base | {"data": {"name": name}})
        for name in ("cifar10", "synthetic-cifar10")
    ]
    tables = study_tables(summarize(load_run(make_run(tmp_path / "both", both))))
    (table,) = [table for table in tables if table.name == "raffi_tables"]
    # Training, test, a block and the readout, of the cell on CIFAR-10.
    assert table.frame["n"].count() == 4
    page = write_report([make_run(tmp_path / "made", both[1:])])[1] / "report.md"
    text = page.read_text()
    assert not [name for name in ("Raffi", "Dearing", "Boca", "ublished") if name in text]


def test_the_first_page_claims_no_comparison_that_was_not_made(tmp_path: Path) -> None:
    """A run of repeats of one sequential cell."""
    base = GOLDEN["chunks"][0]
    experiments = [Experiment.model_validate(base | {"repeat": repeat}) for repeat in range(2)]
    page = first_page(make_run(tmp_path / "run", experiments))
    assert "No cell was compared with another one that must learn the same." in page
    assert "agree" not in page


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
