"""Imported logs: what is read, what is refused, and Raffi's tables from his own logs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main
from analysis.report.import_csv import import_logs
from analysis.studies.study import FOLDER, read_published

HEADER = "epoch,batch,seconds,phase\n"


def test_raffis_tables_come_out_of_his_logs(tmp_path: Path) -> None:
    """Means to the digits printed, n of 100 and 20, standard deviations of the sample."""
    out = tmp_path / "out"
    assert main(["import-csv", str(FOLDER / "raffi" / "logs"), "--out", str(out)]) == 0
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
        for mean, printed in (("mean_s", "seconds"), ("std_s", "std_s"), ("min_s", "min_s")):
            # Rounded to two digits, or cut off.
            assert mine[mean] == pytest.approx(row[printed], abs=0.01)
    above = steps.loc[("pipe_0_micro5_stage2", "train")]
    assert above["verdict"] == "above the bound: 1.968, at most 1.667"
    assert steps.loc[("pipe_0_micro5_stage4", "train"), "verdict"] == "within the bound"


def test_milliseconds_and_replicas_of_one_batch_size(tmp_path: Path) -> None:
    seq, mine = tmp_path / "seq.csv", tmp_path / "mine_dp2-pp2_m8.csv"
    seq.write_text("seconds\n0.2\n0.2\n")
    mine.write_text("step_time_ms,phase\n100,train\n100,train\n")
    frame = import_logs([seq, mine]).frame.set_index("log")
    assert frame.loc[mine.stem, "speedup"] == pytest.approx(4.0)
    assert frame.loc[mine.stem, "bound"] == pytest.approx(2 * 2 * 8 / 9)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("seq.csv", "", "No columns to parse from file; allowed: a CSV file"),
        ("seq.csv", HEADER, "no steps"),
        ("seq.csv", HEADER + "\n0,0,fast,0\n", "seq.csv:3: seconds: found 'fast'; allowed: a num"),
        ("seq.csv", HEADER + "0,0,1.5,0\n0,1,-1,0\n", "seq.csv:3: seconds: found '-1'"),
        ("seq.csv", HEADER + "0,0,1.5,7\n", "phase: found '7'"),
        ("seq.csv", HEADER + '0,1,1,"0\n', "CSV"),
        ("seq.csv", "\udcff", "a CSV file in UTF-8"),
        ("sequence.csv", "seconds\n1\n", "found sequence.csv; allowed: a layout in it"),
        ("seq.csv", None, "No such file"),
        ("", None, "no CSV file"),
    ],
)
def test_what_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | None, words: str
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text, errors="surrogateescape")
    assert main(["import-csv", str(tmp_path / name)]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
