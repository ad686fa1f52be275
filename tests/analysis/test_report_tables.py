"""Published tables beside ours, the corrected study, and the three forms a table is written in."""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main
from analysis.loading.joined_runs import load_runs
from analysis.loading.run import Run, load
from analysis.papers.corrected_study import STUDY_COLUMNS, corrected_study_frame
from analysis.papers.published_data import (
    FOLDER,
    matches_published_digits,
    published_studies,
    read_published,
)
from analysis.render.cell_text import format_value
from analysis.render.latex import table_to_latex
from analysis.render.markdown import table_to_markdown
from analysis.render.named_table import NamedTable
from analysis.render.table_files import write_table
from analysis.report.report_tables import make_report_tables, write_report_tables
from analysis.summary.summary_table import summarise
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.vig.model import Vig
from tests.tools.make_run import Machine, Story, make_run, small_sweep


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(make_run(tmp_path_factory.mktemp("run") / "r", small_sweep(repeats=3)))


@pytest.fixture(scope="module")
def summary(run: Run) -> pd.DataFrame:
    return summarise(run)


@pytest.fixture(scope="module")
def tables(run: Run, summary: pd.DataFrame) -> dict[str, NamedTable]:
    return {table.name: table for table in make_report_tables(run, summary)}


def test_all_published_tables_are_there(tables: dict[str, NamedTable]) -> None:
    raffi = [f"raffi_table{n}" for n in range(1, 10)]
    others = ["dearing_conclusions", "dearing_table2", "dearing_table3"]
    others += ["dearing_table3_learnt", "boca_table2", "torchgpipe_speedups"]
    ours = ["speedup", "efficiency", "lost_time", "noise", "corrected_study"]
    assert {*raffi, *others, *ours} == set(tables)


@pytest.mark.parametrize(
    ("number", "layout", "microbatches"),
    [
        (1, "seq", 1),
        (4, "pp2", 10),
        (5, "pp2", 5),
        (6, "pp4", 10),
        (7, "pp4", 5),
        (9, "dp2-pp2", 5),
    ],
)
def test_ours_stand_under_the_printed_numbers(
    tables: dict[str, NamedTable],
    summary: pd.DataFrame,
    number: int,
    layout: str,
    microbatches: int,
) -> None:
    frame = tables[f"raffi_table{number}"].frame
    printed = read_published("raffi_tables")
    printed = printed[printed["table"] == number]
    theirs, ours = frame[frame["source"] == "published"], frame[frame["source"] != "published"]
    assert theirs["mean_s"].tolist() == printed["mean_s"].tolist()
    wanted = summary[
        (summary["model"] == "vig")
        & (summary["layout"] == layout)
        & (summary["microbatches"] == microbatches)
    ]
    assert ours["mean_s"].tolist() == wanted["mean_s"].tolist()
    assert ours["n"].tolist() == wanted["n"].tolist()


def test_blocks_and_readout_come_from_the_groups_of_the_sequential_run(
    tables: dict[str, NamedTable], summary: pd.DataFrame
) -> None:
    """The made-up machine spends the whole step in its layers, but for 2 %."""
    block, readout = tables["raffi_table2"].frame, tables["raffi_table3"].frame
    both = block[block["note"] == "forward and backward"]["mean_s"].iloc[0] * 8
    both += readout[readout["note"] == "forward and backward"]["mean_s"].iloc[0]
    step = summary[(summary["layout"] == "seq") & (summary["model"] == "vig")]["mean_s"].iloc[0]
    assert both == pytest.approx(step / 1.02, rel=0.01)
    forward = block[(block["note"] == "forward") & (block["phase"] == "train")]
    assert forward["n"].iloc[0] == 3 * 8 * 11


def test_defects_stand_under_the_numbers_they_bear_on(tables: dict[str, NamedTable]) -> None:
    assert any("38.85" in note for note in tables["raffi_table1"].notes)
    assert any("6/2/2/2" in note for note in tables["raffi_table7"].notes)
    assert any("did not cross" in note for note in tables["raffi_table5"].notes)
    assert not any("6/2/2/2" in note for note in tables["raffi_table5"].notes)
    assert any("use_ddp" in note for note in tables["boca_table2"].notes)
    assert any("1/k" in note for note in tables["dearing_table3"].notes)


def test_dearings_tables_have_our_chunks_in_all(tables: dict[str, NamedTable]) -> None:
    frame = tables["dearing_table3"].frame
    ours = frame[frame["epoch_s"].notna()]
    assert set(zip(ours["layout"], ours["chunks"], strict=True)) >= {("pp2", 2), ("dp2-pp2", 8)}
    assert set(ours["mode"]) == {"whole graph", "halo"}
    assert set(ours[ours["chunks"] > 1]["mode"]) == {"halo"}
    single = tables["dearing_table2"].frame
    single = single[single["epoch_ms"].notna()]
    assert set(single["compute"]) == {"CPU"}


def test_seconds_of_a_gpu_are_not_shown_as_those_of_a_cpu(tmp_path: Path) -> None:
    sweep = [e for e in small_sweep(repeats=1) if e.model.name == "gat"]
    run = load(make_run(tmp_path / "run", [e.model_copy(update={"device": "gpu"}) for e in sweep]))
    (table,) = [t for t in make_report_tables(run, summarise(run)) if t.name == "dearing_table2"]
    ours = table.frame[table.frame["epoch_ms"].notna()]
    assert set(ours["compute"]) == {"GPU"}


def test_the_corrected_study_judges_each_table(run: Run, summary: pd.DataFrame) -> None:
    study = corrected_study_frame(summary, run)
    assert list(study.columns) == STUDY_COLUMNS
    raffi = study[study["study"] == "raffi"]
    assert set(raffi["table"]) == {str(n) for n in range(1, 10)}
    assert set(study[study["study"] == "dearing"]["table"]) == {"2", "3"}
    assert {"boca", "torchgpipe"} <= set(study["study"])
    assert (study["verdict"].str.len() > 0).all()

    speedups = raffi[(raffi["quantity"] == "speedup") & (raffi["phase"] == "train")]
    five = speedups[speedups["table"] == "5"].iloc[0]
    assert five["published"] == pytest.approx(1.968, abs=0.001)
    assert five["bound"] == pytest.approx(5 / 3)
    assert five["verdict"].startswith("Published is above the bound: gradients did not cross")
    assert five["ours_low"] < five["ours"] < five["ours_high"]
    four = speedups[speedups["table"] == "7"].iloc[0]
    assert "6/2/2/2" in four["verdict"]
    reported = read_published("raffi_speedups")
    for _, row in reported.iterrows():
        setting = f"{row['layout']}, {row['microbatches']} micro-batches"
        mine = speedups[speedups["setting"] == setting].iloc[0]
        assert mine["published"] == pytest.approx(row["speedup_from_table"], abs=0.001)
        assert mine["bound"] == pytest.approx(row["balanced_gpipe_bound"], abs=0.001)


def test_the_one_misprint_is_found_and_no_other(run: Run, summary: pd.DataFrame) -> None:
    study = corrected_study_frame(summary, run)
    wrong = study[study["verdict"].str.startswith("Misprint")]
    assert wrong[["table", "phase", "quantity", "published"]].to_numpy().tolist() == [
        ["1", "train", "max_s", 38.85]
    ]
    assert "39.85" in wrong["verdict"].iloc[0]


def test_blocks_were_timed_forward_only(run: Run, summary: pd.DataFrame) -> None:
    study = corrected_study_frame(summary, run)
    blocks = study[(study["table"] == "2") & (study["study"] == "raffi")]
    train = blocks[blocks["phase"] == "train"].iloc[0]
    assert train["published"] == pytest.approx(8 * 1.95 / 37.44)
    assert train["ours"] == pytest.approx(1 / 1.02, rel=0.02)
    assert "forward only" in train["verdict"]


def vig(**changes: object) -> list[Experiment]:
    sweep = [e for e in small_sweep(repeats=3, **changes) if e.model.name == "vig"]
    return [e for e in sweep if str(e.layout) in ("seq", "pp2") and e.microbatches in (1, 5)]


def ours_of(run: Run, table: str, baseline: str = "seq") -> pd.DataFrame:
    study = corrected_study_frame(summarise(run, baseline), run)
    mine = study[(study["table"] == table) & (study["phase"] == "train") & study["ours"].notna()]
    return mine.reset_index(drop=True)


def test_published_speedups_are_beside_ours_over_the_same_whatever_the_baseline(
    tmp_path: Path,
) -> None:
    run = load(make_run(tmp_path / "run", vig()))
    over_seq = ours_of(run, "5")
    assert over_seq["ours"].iloc[0] == pytest.approx(5 / 3, rel=0.02)
    for baseline in ("pp2:5", "pp4"):
        pd.testing.assert_frame_equal(ours_of(run, "5", baseline), over_seq)


def test_blocks_of_other_settings_are_rows_of_their_own(tmp_path: Path) -> None:
    """Of a model with four blocks these four are its share of the step."""
    small = [e.model_copy(update={"model": Vig(blocks=4)}) for e in vig()]
    double = [e.model_copy(update={"dtype": "float64"}) for e in vig()]
    run = load(make_run(tmp_path / "run", [*vig(), *small, *double]))
    shares = ours_of(run, "2")
    assert shares["ours"].to_numpy() == pytest.approx([1 / 1.02] * 3, rel=0.02)
    assert [", ".join(words.split(", ")[3:]) for words in shares["run"]] == [
        "model blocks 8, dtype float32",
        "model blocks 4, dtype float32, 4 of them",
        "model blocks 8, dtype float64",
    ]
    (table,) = [t for t in make_report_tables(run, summarise(run)) if t.name == "raffi_table2"]
    forward = table.frame[(table.frame["note"] == "forward") & (table.frame["phase"] == "train")]
    assert list(forward["n"]) == [3 * 8 * 11, 3 * 4 * 11, 3 * 8 * 11]


@pytest.mark.slow
def test_rows_say_in_print_and_in_files_what_tells_them_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    double = [e.model_copy(update={"dtype": "float64"}) for e in vig()]
    root = make_run(tmp_path / "run", [*vig(), *double])
    assert main(["report", str(root)]) == 0
    head, *rows, _ = capsys.readouterr().out.splitlines()
    named = [row[: head.index("phase") + 5].split() for row in rows]
    assert len({tuple(name) for name in named}) == len(rows)
    for name in ("speedup", "efficiency", "noise"):
        table = pd.read_csv(root / "report" / "tables" / f"{name}.csv")
        assert not table.duplicated(["layout", "microbatches", "phase", "dtype"]).any()


def test_chunks_are_compared_with_one_chunk_of_the_same_cluster(tmp_path: Path) -> None:
    def made(name: str, seconds: float) -> Path:
        sweep = [e for e in small_sweep(repeats=3) if e.model.name == "gat"]
        sweep = [e for e in sweep if (str(e.layout), e.microbatches) == ("pp4", 2)]
        sweep += [e.model_copy(update={"microbatches": 1}) for e in sweep]
        stories = {e.id: [Story(header={"cpu_model": name})] for e in sweep}
        machine = Machine(seconds_a_unit=seconds)
        return make_run(tmp_path / name, sweep, stories=stories, machine=machine)

    run = load_runs([made("old", 2e-10), made("new", 1e-10)])
    found = ours_of(run, "3")
    found = found[found["quantity"] == "speedup"]
    assert found["ours"].iloc[0] == pytest.approx(found["ours"].iloc[1], rel=0.02)
    assert (found["ours_low"] < found["ours"]).all()
    assert [words.rpartition(", ")[2] for words in found["run"]] == ["run old", "run new"]


def test_a_run_without_cells_of_a_study_still_prints_it(tmp_path: Path) -> None:
    gat_only = [e for e in small_sweep(repeats=3) if e.model.name == "gat"]
    run = load(make_run(tmp_path / "run", gat_only))
    summary = summarise(run)
    study = corrected_study_frame(summary, run)
    assert study[study["study"] == "raffi"]["ours"].isna().all()
    assert "raffi_table1" not in {table.name for table in make_report_tables(run, summary)}


def test_every_table_is_written_three_times(tables: dict[str, NamedTable], tmp_path: Path) -> None:
    written = write_report_tables(list(tables.values()), tmp_path)
    assert len(written) == 3 * len(tables)
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".md", ".tex"}


def odd_table() -> NamedTable:
    frame = pd.DataFrame(
        {
            "name_1": ["a|b", "50 % & {more}", None],
            "seconds": [1.23456, float("nan"), 123456.0],
            "n": [1, 2, 3],
            "valid": [True, False, True],
        }
    )
    return NamedTable("odd", "An odd & unlikely table", frame, ("A note_with 5 %",))


def test_csv_keeps_all_digits(tmp_path: Path) -> None:
    write_table(odd_table(), tmp_path)
    with (tmp_path / "odd.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0] == {"name_1": "a|b", "seconds": "1.23456", "n": "1", "valid": "True"}
    assert rows[1]["seconds"] == ""


def test_markdown_escapes_and_aligns() -> None:
    lines = table_to_markdown(odd_table()).splitlines()
    assert lines[2] == "| name_1 | seconds | n | valid |"
    assert lines[3] == "| --- | ---: | ---: | --- |"
    assert lines[4] == "| a\\|b | 1.235 | 1 | yes |"
    assert lines[6] == "|  | 123456 | 3 | yes |"
    assert lines[-1] == "A note_with 5 %"


def test_latex_escapes_and_aligns() -> None:
    text = table_to_latex(odd_table())
    assert r"\begin{tabular}{lrrl}" in text
    assert r"name 1 & seconds & n & valid \\" in text
    assert r"50 \% \& \{more\} &  & 2 & no \\" in text
    assert r"\caption{An odd \& unlikely table}" in text
    assert r"A note\_with 5 \%" in text


def paper_table() -> NamedTable:
    rows = 20
    sentence = "a sentence that is far too long for a column of words"
    frame = pd.DataFrame(
        {
            "model": ["vig"] * rows,
            "layout": ["pp2", "pp4"] * (rows // 2),
            "mean_s": 1.2345,
            "mean_low": 1.2,
            "mean_high": 1.28,
            **{f"column_{n}": range(n, n + rows) for n in range(7)},
            "verdict": [sentence, None] * (rows // 2),
        }
    )
    return NamedTable("paper", "A table", frame, ("One note.",))


def test_a_papers_table_has_seven_columns_and_its_sentences_below() -> None:
    text = table_to_latex(paper_table())
    parts = text.split(r"\begin{table")[1:]
    assert len(parts) == 2
    for part in parts:
        (columns,) = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", part)
        body = part.split(r"\midrule")[1].split(r"\bottomrule")[0]
        assert len(columns) <= 7
        assert all(row.count("&") == len(columns) - 1 for row in body.strip().splitlines())
        assert "sentence" not in body
        assert part.count("a sentence that is") == 1
        assert r"pp2\textsuperscript{1} &" in body
        assert r"pp4 &" in body
    assert "All rows: model vig, mean (s) 1.234 [1.200, 1.280]." in parts[0]
    assert "Not shown: column 6; paper.csv has all." in parts[0]


def test_latex_compiles_in_two_columns_without_running_over(
    tables: dict[str, NamedTable], tmp_path: Path
) -> None:
    compiler = shutil.which("pdflatex")
    if compiler is None:
        pytest.skip("no TeX: apt-get install texlive-latex-recommended")
    whole = [*tables.values(), odd_table(), paper_table()]
    text = "\n\\clearpage\n".join(table_to_latex(table) for table in whole)
    (tmp_path / "paper.tex").write_text(
        "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs}\n\\usepackage[T1]{fontenc}\n"
        f"\\begin{{document}}\n{text}\n\\end{{document}}\n",
        encoding="utf-8",
    )
    ended = subprocess.run(
        [compiler, "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout[-3000:]
    log = (tmp_path / "paper.log").read_text(encoding="latin-1")
    assert not re.findall(r"Overfull \\hbox.*|Float too large.*|.*multiply defined.*", log)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (float("nan"), ""),
        (True, "yes"),
        (3.0, "3"),
        (0.00012345, "0.0001234"),
        (1234567.8, "1234568"),
        ("pp2", "pp2"),
        (pd.NA, ""),
    ],
)
def test_values_are_shown_with_the_digits_that_count(value: object, text: str) -> None:
    assert format_value(value) == text


def test_sources_tell_of_every_file_that_is_kept() -> None:
    known = [name for source in published_studies().values() for name in source.files]
    kept = [path.name for path in FOLDER.iterdir() if path.name != "sources.yaml"]
    assert sorted(known) == sorted(kept)


def test_printed_digits_may_be_rounded_or_cut_off() -> None:
    assert matches_published_digits(39.849, "39.85")
    assert matches_published_digits(0.0496, "0.04")
    assert matches_published_digits(0.0496, "0.05")
    assert not matches_published_digits(39.849, "38.85")
    assert matches_published_digits(100.0, "100")
    assert not matches_published_digits(101.0, "100")
