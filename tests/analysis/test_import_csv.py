"""Imported logs: what is read, what is refused, and Raffi's tables from his own logs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main
from analysis.report.import_csv import import_logs, setting_in_name
from analysis.studies.study import FOLDER, read_published
from gnnhpc.core.layout import Layout

LOGS = FOLDER / "raffi" / "logs"
TIMES = [0.21, 0.19, 0.2, 0.23, 0.18, 0.22, 0.2, 0.21]
SEQ = "seconds\n" + "".join(f"{time}\n" for time in TIMES)
HEADER = "epoch,batch,seconds,phase\n"


def test_raffis_tables_come_out_of_his_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Means to the digits printed, n of 100 and 20, standard deviations of the sample."""
    out = tmp_path / "out"
    assert main(["import-csv", str(LOGS), "--out", str(out)]) == 0
    assert "above the bound: 1.96" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {
        *("step_times.csv", "step_times.md", "step_times.tex", "report.html", "report.md"),
    }
    steps = pd.read_csv(out / "step_times.csv").set_index(["log", "phase"])
    names = {
        1: "seq",
        4: "pipe_0_micro10_stage2",
        5: "pipe_0_micro5_stage2",
        6: "pipe_0_micro10_stage4",
        7: "pipe_0_micro5_stage4",
    }
    tables = read_published("raffi_tables")
    for row in tables[tables["table"].isin(list(names))].to_dict("records"):
        mine = steps.loc[(names[row["table"]], row["phase"])]
        assert (mine["layout"], mine["n"]) == (row["layout"], row["n"])
        for quantity in ("mean_s", "std_s", "min_s"):
            # Rounded to two digits, or cut off.
            assert mine[quantity] == pytest.approx(row[quantity], abs=0.01)
    above = steps.loc[("pipe_0_micro5_stage2", "train")]
    assert above["speedup"] == pytest.approx(1.968, abs=0.001)
    assert above["bound"] == pytest.approx(1.667, abs=0.001)
    assert steps.loc[("pipe_0_micro5_stage4", "train"), "verdict"] == "within the bound"


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("pipe_0_micro5_stage2", (Layout(1, 2), 5)),
        ("seq_loss", (Layout(), 1)),
        ("seq_micro4", (Layout(), 4)),
        ("dp2-pp2_m5_rank1", (Layout(2, 2), 5)),
        ("pp4", (Layout(1, 4), None)),
        ("sequence", (None, None)),
    ],
)
def test_file_names_contain_layouts(name: str, setting: tuple[object, ...]) -> None:
    assert setting_in_name(name) == setting


def test_units_layouts_and_baselines_can_be_given(tmp_path: Path) -> None:
    seq, mine = tmp_path / "seq.csv", tmp_path / "mine.csv"
    seq.write_text(SEQ)
    mine.write_text("step_time_ms,phase\n" + "".join(f"{500 * time},train\n" for time in TIMES))
    frame = import_logs([seq, mine], {"mine.csv": "dp2-pp2:8"}).frame.set_index("log")
    # Two replicas do twice the samples a step.
    assert frame.loc["mine", "speedup"] == pytest.approx(4.0)
    assert frame.loc["mine", "bound"] == pytest.approx(2 * 2 * 8 / 9)
    frame = import_logs([seq, mine], {"mine.csv": "dp2"}, "mine.csv").frame.set_index("log")
    assert frame["verdict"].to_dict() == {"seq": "within the bound", "mine": "baseline"}
    assert "use --layout" in import_logs([seq, mine]).frame["verdict"].iloc[1]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("", [], "column of times: found nothing; allowed: seconds, step_time_s"),
        ("epoch,batch,phase\n0,0,0\n", [], "found epoch, batch, phase"),
        (HEADER, [], "no steps"),
        (HEADER + "\n0,0,fast,0\n", [], "mine.csv:3: seconds: found 'fast'; allowed: a number"),
        (HEADER + "0,0,1.5,0\n0,1,-1,0\n", [], "mine.csv:3: seconds: found '-1'"),
        (HEADER + "0,0,nan,0\n", [], "a number above zero"),
        (HEADER + "0,0,1.5,7\n", [], "phase: found '7'"),
        (HEADER + "0,0,1.5\n", [], "phase: found ''"),
        (HEADER + '0,1,1,"0\n', [], "CSV"),
        ("\udcff", [], "a CSV file in UTF-8"),
        (SEQ, ["--layout", "mine.csv"], "--layout"),
        (SEQ, ["--layout", "other=pp2"], "--layout: found other"),
        (SEQ, ["--layout", "mine.csv=pp2:0"], "--layout: found 'pp2:0'"),
        (SEQ, ["--baseline", "other"], "--baseline: found other"),
        (None, [], "No such file"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    options: list[str],
    words: str,
) -> None:
    path = tmp_path / "mine.csv"
    if text is not None:
        path.write_text(text, errors="surrogateescape")
    assert main(["import-csv", str(path), *options]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_folder_without_csv_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import-csv", str(tmp_path)]) == 2
    assert "no CSV file" in capsys.readouterr().err
