"""Records: what is written reads back, other schemas and damage are refused, a cut line is not."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gnnhpc.core.errors import InputError
from gnnhpc.records.result_file import Result
from gnnhpc.records.schema import SCHEMA, Check, Failure, Header, read_lines

HEADER = Header(
    cell="vig-1",
    attempt=1,
    rank=0,
    replica=0,
    stage=0,
    world_size=1,
    host="n1",
    pid=7,
    cpu_model="Some CPU",
    cpus=2,
    threads=1,
    device="cpu",
    layers=["readout"],
    parameters=14_346,
    started_at="2026-03-01T09:00:00+00:00",
)
RESULT = Result(
    cell="vig-1",
    attempt=1,
    status="done",
    experiment={"train_steps": 3},
    layout={"name": "seq"},
    provenance={},
    started_at="2026-03-01T09:00:00+00:00",
    ended_at="2026-03-01T09:01:00+00:00",
    train_steps=3,
    test_steps=1,
    final={"train_loss": 1.5},
    audit=[Check("samples", "ok", "each seen once", {"repeated": 0})],
)
FAILURE = Failure(1, "n2", 17, "train", "RuntimeError: größer", "2026-03-01T09:00:30+00:00")


@pytest.mark.parametrize(
    "result",
    [RESULT, replace(RESULT, status="failed", failure=FAILURE, resumed_from={"attempt": 1})],
)
def test_a_result_reads_back(tmp_path: Path, result: Result) -> None:
    result.write(tmp_path / "result.json")
    assert Result.read(tmp_path / "result.json") == result


def test_valid_means_done_and_nothing_found_invalid() -> None:
    def with_verdicts(*verdicts: Any) -> Result:
        return replace(RESULT, audit=[Check(f"c{i}", v, "") for i, v in enumerate(verdicts)])

    assert with_verdicts("ok", "suspect", "unknown").valid
    assert with_verdicts("ok", "suspect", "unknown").flags == ["c1"]
    assert not with_verdicts("ok", "invalid").valid
    assert with_verdicts("suspect", "invalid", "ok").flags == ["c0", "c1"]
    assert not replace(RESULT, status="failed", failure=FAILURE).valid
    assert not replace(RESULT, status="interrupted").valid


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (json.dumps(asdict(RESULT) | {"schema": 99}), "schema: found 99; allowed: 1"),
        (json.dumps(asdict(RESULT))[:100], "found damaged JSON"),
        ("[]", "found []; allowed: a result"),
        (json.dumps({"schema": SCHEMA, "cell": "vig-1"}), "attempt: found nothing"),
        (json.dumps(asdict(RESULT) | {"colour": "red"}), "colour: found 'red'; allowed: no"),
    ],
    ids=range(5),
)
def test_other_schemas_and_damage_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(InputError) as refused:
        Result.read(path)
    assert str(refused.value).startswith(f"{path}: {complaint}")
    assert "\n" not in str(refused.value)


def rank_file(path: Path, *lines: object, tail: str = "") -> Path:
    text = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines)
    path.write_text(text + tail, encoding="utf-8")
    return path


STEP = {"kind": "step", "phase": "train", "step": 0}


def test_a_last_line_cut_short_anywhere_is_left_out(tmp_path: Path) -> None:
    for cut in range(1, len(json.dumps(STEP))):
        path = rank_file(tmp_path / "rank", asdict(HEADER), STEP, tail=json.dumps(STEP)[:cut])
        assert read_lines(path)[1:] == [STEP]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([asdict(HEADER) | {"schema": 2}, STEP], ": schema: found 2; allowed: 1"),
        ([STEP, STEP], ": found no header line; allowed: a header of schema 1"),
        (["[1]", STEP], ":1: found [1]; allowed: one record"),
        ([asdict(HEADER), '{"kind": "st', STEP], ":2: found damaged JSON (EOF"),
    ],
    ids=range(4),
)
def test_a_damaged_rank_file_is_named(tmp_path: Path, lines: list[object], complaint: str) -> None:
    path = rank_file(tmp_path / "rank", *lines)
    with pytest.raises(InputError) as refused:
        read_lines(path)
    assert str(refused.value).startswith(f"{path}{complaint}")


def test_a_result_that_was_changed_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    RESULT.write(path)
    raw = json.loads(path.read_text())
    path.write_text(json.dumps(raw | {"train_steps": raw["train_steps"] + 1}))
    with pytest.raises(InputError, match="content: found changed since it was written"):
        Result.read(path)
    # Users may take out hosts and paths before they publish a result.
    path.write_text(json.dumps(raw | {"provenance": {}}))
    assert Result.read(path).provenance == {}
    path.write_text(json.dumps({key: value for key, value in raw.items() if key != "digest"}))
    with pytest.raises(InputError, match="content: found changed"):
        Result.read(path)
