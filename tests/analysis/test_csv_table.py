"""Foreign logs: what is read, what is refused, and Raffi's tables from his own logs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.foreign.csv_logs import parse_setting, read_log, setting_from_name
from analysis.foreign.csv_table import import_logs, list_csv_files, parse_declared
from analysis.studies.study import log_folder, matches_published_digits, read_published
from gnnhpc.core.errors import InputError
from gnnhpc.core.layout import Layout

Frames = tuple[pd.DataFrame, pd.DataFrame]
"""The step table, and the printed numbers against the logs."""

HEADER = "epoch,batch,batch_time(s),phase\n"


def write_log(path: Path, mean: float, n: int = 30, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    lines = [f"0,{i},{mean + 0.01 * rng.normal()},0\n" for i in range(n)]
    path.write_text(HEADER + "".join(lines) + f"0,0,{mean / 3},1\n0,1,{mean / 3},1\n")
    return path


@pytest.fixture(scope="module")
def frames() -> Frames:
    imported = import_logs(list_csv_files([log_folder()]))
    assert imported.published_statistics is not None
    return imported.steps.frame, imported.published_statistics.frame


def test_raffis_tables_come_out_of_his_logs(frames: Frames) -> None:
    """Means to the digits printed, n of 100 and 20, standard deviations of the sample."""
    steps, _ = frames
    names = {
        "1": "seq",
        "4": "pipe_0_micro10_stage2",
        "5": "pipe_0_micro5_stage2",
        "6": "pipe_0_micro10_stage4",
        "7": "pipe_0_micro5_stage4",
    }
    compared = 0
    for _, printed in read_published("raffi_tables", as_text=True).iterrows():
        if printed["table"] not in names:
            continue
        log = names[printed["table"]]
        mine = steps[(steps["log"] == log) & (steps["phase"] == printed["phase"])].iloc[0]
        assert mine["layout"] == printed["layout"]
        assert mine["microbatches"] == int(printed["microbatches"])
        assert mine["n"] == int(printed["n"])
        for quantity in ("mean_s", "std_s", "min_s"):
            assert matches_published_digits(mine[quantity], printed[quantity])
        compared += 1
    assert compared == 10


def test_his_standard_deviations_are_the_samples() -> None:
    """Printed 0.042; n - 1 gives 0.0423 and n gives 0.0413."""
    log = read_log(log_folder() / "seq.csv")
    assert f"{log.seconds('test').std(ddof=1):.3f}" == "0.042"
    assert f"{log.seconds('test').std(ddof=0):.3f}" == "0.041"


def test_his_misprint_is_the_only_one(frames: Frames) -> None:
    _, printed = frames
    wrong = printed[printed["verdict"].str.startswith("misprint")]
    assert wrong[["table", "phase", "quantity"]].to_numpy().tolist() == [[1, "train", "max_s"]]
    assert wrong["printed"].iloc[0] == 38.85
    assert wrong["verdict"].iloc[0] == "misprint: the log has 39.85"


def test_his_two_stages_at_five_microbatches_are_above_the_bound(frames: Frames) -> None:
    steps, _ = frames
    rows = steps[(steps["layout"] == "pp2") & (steps["microbatches"] == 5)]
    train = rows[(rows["phase"] == "train") & (rows["rank"] == 0)].iloc[0]
    assert train["speedup"] == pytest.approx(1.968, abs=0.001)
    assert train["bound"] == pytest.approx(1.667, abs=0.001)
    assert "one run says nothing about how runs differ" in train["verdict"]
    assert rows["verdict"].str.startswith("above the bound").all()
    others = steps[(steps["layout"].isin(["pp4"])) | (steps["microbatches"] == 10)]
    assert others["verdict"].str.startswith("within the bound").all()


def test_two_runs_of_one_setting_tell_how_runs_differ(frames: Frames) -> None:
    steps, _ = frames
    again = steps[(steps["log"] == "seq_loss") & (steps["phase"] == "train")].iloc[0]
    assert again["speedup"] == pytest.approx(37.4446 / 36.8381, abs=1e-4)
    assert again["verdict"].startswith("the baseline's setting run again")


@pytest.mark.parametrize(
    ("name", "layout", "microbatches", "rank"),
    [
        ("pipe_0_micro5_stage2.csv", Layout(1, 2), 5, 0),
        ("pipe_3_micro10_stage4.csv", Layout(1, 4), 10, 3),
        ("seq.csv", Layout(), 1, None),
        ("seq_loss.csv", Layout(), 1, None),
        ("dp2-pp2_m5_rank1.csv", Layout(2, 2), 5, 1),
        ("dp2_pp4_micro8.csv", Layout(2, 4), 8, None),
        ("vig_pp3_microbatches_12.csv", Layout(1, 3), 12, None),
        ("times.csv", None, None, None),
        ("sequence.csv", None, None, None),
        ("seq_micro4.csv", Layout(), 4, None),
    ],
)
def test_names_tell_layouts(
    name: str, layout: Layout | None, microbatches: int | None, rank: int | None
) -> None:
    log = setting_from_name(name)
    assert (log.layout, log.microbatches, log.rank) == (layout, microbatches, rank)


def test_declared_layouts_count_before_names(tmp_path: Path) -> None:
    one = write_log(tmp_path / "a.csv", 4.0)
    two = write_log(tmp_path / "b.csv", 2.0, seed=1)
    declared = parse_declared(["a.csv=seq", "b=dp2-pp2:8"])
    frame = import_logs([one, two], declared=declared).steps.frame
    row = frame[(frame["log"] == "b") & (frame["phase"] == "train")].iloc[0]
    assert row["layout"] == "dp2-pp2"
    # Two replicas do twice the samples a step.
    assert row["speedup"] == pytest.approx(4.0, rel=0.01)
    assert row["bound"] == pytest.approx(2 * 2 * 8 / 9)


def test_unknown_layouts_have_times_but_no_speedup(tmp_path: Path) -> None:
    frame = import_logs([write_log(tmp_path / "seq.csv", 4), write_log(tmp_path / "x.csv", 2)])
    row = frame.steps.frame[frame.steps.frame["log"] == "x"].iloc[0]
    assert row["verdict"] == "no speedup: unknown layout, use --layout"
    assert row["mean_s"] == pytest.approx(2.0, rel=0.01)


def test_without_a_sequential_log_there_is_no_speedup(tmp_path: Path) -> None:
    imported = import_logs([write_log(tmp_path / "pp2_m4.csv", 2)])
    assert imported.baseline is None
    assert set(imported.steps.frame["verdict"]) == {"no speedup: no baseline"}
    assert imported.published_statistics is None


def test_the_baseline_can_be_named(tmp_path: Path) -> None:
    logs = [write_log(tmp_path / "seq.csv", 4), write_log(tmp_path / "pp2_m4.csv", 2)]
    imported = import_logs(logs, baseline="pp2_m4")
    assert imported.baseline is not None
    assert imported.baseline.name == "pp2_m4"


def test_warmup_is_reported_and_left_out_when_asked(tmp_path: Path) -> None:
    path = write_log(tmp_path / "seq.csv", 4)
    lines = path.read_text().splitlines()
    lines[1] = "0,0,9.0,0"
    path.write_text("\n".join(lines) + "\n")
    kept = import_logs([path]).steps.frame.iloc[0]
    cut = import_logs([path], drop_warmup=True).steps.frame.iloc[0]
    assert (kept["n"], kept["warmup_steps"], kept["max_s"]) == (30, 1, 9.0)
    assert cut["n"] == 29
    assert cut["max_s"] < 5


def test_other_column_names_and_phases_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "seq.csv"
    path.write_text("\ufeffEpoch, Step ,Seconds,Loss,Split\n0,0,1.5,2.3,train\n0,1,0.5,,val\n\n")
    log = read_log(path)
    assert log.steps["phase"].tolist() == ["train", "test"]
    assert log.steps["loss"].iloc[0] == 2.3
    assert np.isnan(log.steps["loss"].iloc[1])


def test_files_of_one_name_keep_apart(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    paths = [write_log(tmp_path / "one" / "seq.csv", 4), write_log(tmp_path / "two" / "seq.csv", 3)]
    names = import_logs(paths).steps.frame["log"].unique().tolist()
    assert names == ["one/seq", "two/seq"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "column epoch"),
        ("epoch,batch,phase\n0,0,0\n", "column seconds"),
        (HEADER, "no steps"),
        (HEADER + "0,0,fast,0\n", r"log\.csv:2: batch_time\(s\): found 'fast'; allowed: a number"),
        (HEADER + "0,0,1.5,0\n0,1,-1,0\n", r"log\.csv:3: .*seconds above zero"),
        (HEADER + "0,0,nan,0\n", "seconds above zero"),
        (HEADER + "0,0,1.5,7\n", "phase: found '7'"),
        (HEADER + "0,0,1.5\n", "phase: found ''"),
    ],
)
def test_bad_logs_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_log(path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_log(tmp_path / "none.csv")
    with pytest.raises(InputError, match="no CSV file"):
        list_csv_files([tmp_path])
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match="UTF-8"):
        read_log(binary)


def test_bad_flags_are_named(tmp_path: Path) -> None:
    path = write_log(tmp_path / "seq.csv", 4)
    with pytest.raises(InputError, match="--layout"):
        parse_declared(["seq.csv"])
    with pytest.raises(InputError, match="--layout: found other"):
        import_logs([path], declared={"other": "pp2"})
    with pytest.raises(InputError, match="--baseline: found other"):
        import_logs([path], baseline="other")
    with pytest.raises(InputError, match="micro-batches"):
        parse_setting("pp2:0")
    with pytest.raises(InputError, match="layout"):
        parse_setting("pp2x:5")
