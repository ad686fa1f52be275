"""Imported logs: what is read, what is refused, and Raffi's tables from his own logs."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from analysis.cli import main
from analysis.report.import_csv import import_logs, list_csv_files
from analysis.report.read_step_logs import read_logs, setting_in_name
from analysis.studies.raffi_logs import LOGS, matches_published_digits
from analysis.studies.study import read_published
from gnnhpc.core.layout import Layout

TIMES = [0.21, 0.19, 0.2, 0.23, 0.18, 0.22, 0.2, 0.21]


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def log_text(header: str, row: str, scale: float = 1.0) -> str:
    """A header and one row a step, with its number and its time."""
    lines = [row.format(i=i, t=scale * t) for i, t in enumerate(TIMES)]
    return "\n".join([header, *lines]) + "\n"


PLAIN = log_text("epoch,batch,seconds,phase", "0,{i},{t},train")


@pytest.fixture(scope="module")
def raffis() -> tuple[pd.DataFrame, pd.DataFrame]:
    """The step table of his logs, and the printed numbers beside them."""
    imported = import_logs(list_csv_files([LOGS]))
    assert imported.published is not None
    return imported.steps.frame, imported.published.frame


def test_raffis_tables_come_out_of_his_logs(raffis: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """Means to the digits printed, n of 100 and 20, standard deviations of the sample."""
    steps, printed = raffis
    names = {
        "1": "seq",
        "4": "pipe_0_micro10_stage2",
        "5": "pipe_0_micro5_stage2",
        "6": "pipe_0_micro10_stage4",
        "7": "pipe_0_micro5_stage4",
    }
    tables = read_published("raffi_tables", as_text=True)
    for row in tables[tables["table"].isin(list(names))].to_dict("records"):
        mine = steps[(steps["log"] == names[row["table"]]) & (steps["phase"] == row["phase"])]
        assert (mine["layout"].item(), mine["n"].item()) == (row["layout"], int(row["n"]))
        for quantity in ("mean_s", "std_s", "min_s"):
            assert matches_published_digits(mine[quantity].item(), str(row[quantity]))
    wrong = printed[printed["verdict"].str.startswith("misprint")]
    assert wrong[["table", "phase", "quantity"]].to_numpy().tolist() == [[1, "train", "max_s"]]
    assert wrong["verdict"].item() == "misprint: the log has 39.85"


def test_speedups_have_bound_and_verdict(raffis: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    steps, _ = raffis
    train = steps[steps["phase"] == "train"].set_index("log")
    above = train.loc["pipe_0_micro5_stage2"]
    assert above["speedup"] == pytest.approx(1.968, abs=0.001)
    assert above["bound"] == pytest.approx(1.667, abs=0.001)
    assert above["verdict"].startswith("above the bound")
    assert train.loc["pipe_0_micro5_stage4", "verdict"].startswith("within the bound")
    assert train.loc["seq_loss", "verdict"].startswith("the baseline's setting run again")


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("pipe_0_micro5_stage2", (Layout(1, 2), 5)),
        ("seq_loss", (Layout(), 1)),
        ("seq_micro4", (Layout(), 4)),
        ("dp2-pp2_m5_rank1", (Layout(2, 2), 5)),
        ("dp2_pp4_microbatches_8", (Layout(2, 4), 8)),
        ("sequence", (None, None)),
    ],
)
def test_file_names_contain_layouts(name: str, setting: tuple[object, ...]) -> None:
    assert setting_in_name(name) == setting


SEMICOLONS = log_text("epoch;batch;seconds;phase", "0;{i};{t};train").replace(".", ",")
READ: dict[str, tuple[str, list[str]]] = {
    "usual": (PLAIN, []),
    "other names": (log_text("Epoch, Iter ,Step_Time_Seconds,Split", "0,{i},{t},0"), []),
    "unit in the header": (log_text("batch,time (ms),phase", "{i},{t},train", 1e3), []),
    "unit in the name": (log_text("batch,step_time_us,phase", "{i},{t},train", 1e6), []),
    "unit of values": (log_text("batch,time,phase", "{i},{t} ms,train", 1e3), []),
    "unit given": (log_text("batch,time,phase", "{i},{t},train", 1e3), ["--unit", "ms"]),
    "column given": (
        log_text("batch,mine,phase", "{i},{t},train"),
        ["--columns", "time=mine"],
    ),
    "phase given": (log_text("batch,seconds", "{i},{t}"), ["--phase", "train"]),
    "semicolons and decimal commas": (SEMICOLONS, []),
    "quoted decimal commas": (
        log_text("batch,seconds,phase", '{i},"{t}",train').replace(".", ","),
        [],
    ),
    "tabs": (PLAIN.replace(",", "\t"), []),
    "separator said": ("sep=;\n" + PLAIN.replace(",", ";"), []),
    "wandb": (
        log_text('"Step","a - step_time","a - step_time__MIN"', '"{i}","{t}","{t}"'),
        ["--phase", "train"],
    ),
    "tensorboard": (
        log_text("Wall time,Step,Value", "17000000{i}.5,{i},{t}"),
        ["--phase", "train", "--columns", "time=Value"],
    ),
    "lightning": (
        log_text("batch_time,epoch,step,train_loss_step,val_loss", "{t},0,{i},0.5,")
        + ",0,7,,0.5\n,,,,\n",
        ["--phase", "train"],
    ),
}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_a_mark_at_the_start_says_the_encoding(tmp_path: Path, encoding: str) -> None:
    text = ("\ufeff" if encoding == "utf-16-le" else "") + READ["unit of values"][0]
    (log,) = read_logs(write(tmp_path / "seq.csv", text.replace("ms", "µs"), encoding))
    assert log.seconds("train").tolist() == pytest.approx([1e-3 * t for t in TIMES])


@pytest.mark.parametrize("name", list(READ))
def test_logs_of_many_kinds_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text, options = READ[name]
    seq, mine = write(tmp_path / "seq.csv", PLAIN), write(tmp_path / "pp2_m4.csv", text)
    out = tmp_path / "out"
    assert main(["import-csv", str(seq), str(mine), *options, "--out", str(out)]) == 0
    table = pd.read_csv(out / "step_times.csv").set_index("log")
    assert table.loc["pp2_m4", "mean_s"] == pytest.approx(sum(TIMES) / len(TIMES))
    assert table.loc["pp2_m4", "n"] == len(TIMES)
    # A unit that is given is not that of `seconds`.
    assert table.loc["seq", "mean_s"] == pytest.approx(sum(TIMES) / len(TIMES))
    if name == "lightning":
        assert "1 of 9 rows have no time" in capsys.readouterr().out


def test_hyperfines_json_has_the_times_of_each_command(tmp_path: Path) -> None:
    results = [{"command": f"train {n}", "times": TIMES} for n in range(2)]
    path = write(tmp_path / "h.json", json.dumps({"results": results}))
    logs = read_logs(path)
    assert [log.name for log in logs] == ["h:0", "h:1"]
    assert logs[1].seconds("train").tolist() == TIMES
    assert "8 runs of `train 1`" in logs[1].notes[0]


RESUMED = PLAIN + "".join(f"0,{i},{t},train\n" for i, t in enumerate(TIMES[:2]))


def test_of_steps_that_are_there_twice_the_last_counts(tmp_path: Path) -> None:
    (log,) = read_logs(write(tmp_path / "seq.csv", RESUMED.replace("0,0,0.21", "0,0,9.0", 1)))
    assert len(log.steps) == len(TIMES) and log.steps["seconds"].max() < 1
    assert "2 steps are there twice" in log.notes[0] and "lines 2 and 10" in log.notes[0]


HEADER = "epoch,batch,seconds,phase\n"
CLOCK = log_text("epoch,batch,time,phase", "0,{i},{i}.5,train")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing"),
        (HEADER, "no steps"),
        ("epoch,batch,phase\n0,0,0\n", "column time"),
        ("epoch,batch,seconds\n0,0,0\n", "--phase train"),
        (HEADER + "\n0,0,fast,0\n", "pp2_m4.csv:3: seconds: found 'fast'; allowed: a number above"),
        (HEADER + "0,0,1.5,0\n0,1,-1,0\n", "pp2_m4.csv:3: seconds: found '-1'"),
        (HEADER + "0,0,nan,0\n", "a number above zero"),
        (HEADER + "0,0,1.5,7\n", "phase: found '7'"),
        (HEADER + "0,0,1.5\n", "pp2_m4.csv:2: found 3 fields; allowed: 4"),
        (HEADER + '0,0,1,0\n0,1,1,"0\n' + "0,2,1,0\n" * 9, "pp2_m4.csv:3: found a quote"),
        (HEADER + '0,1,1,"0\n0,2,1,0"\n', "pp2_m4.csv:2: found a quote"),
        (CLOCK, "times that never fall, as of a clock"),
        (CLOCK + CLOCK.partition("\n")[2], "as of a clock"),
        (log_text("batch,time,phase", "{i},{t},train", 1e3), "--unit, or a unit in the header"),
        (log_text("batch,phase,a - time,b - time", "{i},train,{t},{t}"), "--columns time=NAME"),
        (log_text("command,mean,stddev", "x,{t},0.1"), "found command, mean, stddev"),
        (log_text("Wall time,Step,Value", "{i},{i},{t}"), "--columns time=NAME"),
        (HEADER + "0,0,1.5,0\n" * 9, "most steps more than once"),
    ],
)
def test_a_log_that_cannot_be_read_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    seq, mine = write(tmp_path / "seq.csv", PLAIN), write(tmp_path / "pp2_m4.csv", text)
    assert main(["import-csv", str(seq), str(mine)]) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--layout", "seq.csv"], "--layout"),
        (["--layout", "other=pp2"], "--layout: found other"),
        (["--layout", "seq=pp2:0"], "--layout: found 'pp2:0'"),
        (["--baseline", "other"], "--baseline: found other"),
        (["--columns", "speed=x"], "--columns: found 'speed'"),
        (["--unit", "h"], "--unit: found h"),
        (["--phase", "x"], "--phase: found x"),
    ],
)
def test_a_wrong_option_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert main(["import-csv", str(write(tmp_path / "seq.csv", PLAIN)), *options]) == 2
    assert words in capsys.readouterr().err


def test_what_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(bytes(range(256)) * 4)
    for path, words in (
        (tmp_path / "none.csv", "No such file"),
        (tmp_path / "empty", "no CSV file"),
        (binary, "no text"),
    ):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert main(["import-csv", str(path)]) == 2
        assert words in capsys.readouterr().err


def test_layout_baseline_and_warm_up_can_be_given(tmp_path: Path) -> None:
    one = write(tmp_path / "a.csv", PLAIN)
    slow = "epoch,batch,seconds,phase\n" + "".join(
        f"0,{i},{t / 2 + (9 if i == 0 else 0)},0\n" for i, t in enumerate(TIMES * 4)
    )
    two = write(tmp_path / "b.csv", slow)
    declared = {"a.csv": "seq", "b": "dp2-pp2:8"}
    frame = import_logs([one, two], declared=declared, drop_warmup=True).steps.frame
    row = frame.set_index("log").loc["b"]
    # Two replicas do twice the samples a step.
    assert row["speedup"] == pytest.approx(4.0, rel=0.02)
    assert row["bound"] == pytest.approx(2 * 2 * 8 / 9)
    assert (row["n"], row["max_s"] < 5) == (31, True)
    imported = import_logs([one, two], baseline="b")
    assert imported.baseline is not None and imported.baseline.name == "b"
    assert "no speedup" in import_logs([one]).steps.frame["verdict"].item()


def test_files_of_one_name_keep_apart(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    paths = [write(tmp_path / name / "seq.csv", PLAIN) for name in ("one", "two")]
    assert import_logs(paths).steps.frame["log"].unique().tolist() == ["one/seq", "two/seq"]
