"""Loading run folders: which attempt counts, resumed chains, damage, and what the frames hold."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import analysis
from analysis.loading.run import Run, load
from gnnhpc.core.errors import InputError
from gnnhpc.data.published import PublishedGraph
from gnnhpc.data.settings import SyntheticCifar10
from gnnhpc.experiment.experiment import Experiment
from gnnhpc.models.gat.model import Gat
from gnnhpc.models.vig.model import Vig
from gnnhpc.records.run_paths import RunPaths
from gnnhpc.records.schema import Check, SpanRecord, read_lines
from tests.tools.make_run import Story, make_run, small_sweep
from tests.tools.result_files import rewrite_result


def vig(**changes: object) -> Experiment:
    fields = {
        "model": Vig(),
        "data": SyntheticCifar10(image_size=8),
        "batch_size": 10,
        "microbatches": 2,
        "layout": "pp2",
        "train_steps": 6,
        "test_steps": 2,
    }
    return Experiment.model_validate(fields | changes)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load(make_run(tmp_path_factory.mktemp("runs") / "small", small_sweep(repeats=1)))


def one(tmp_path: Path, *stories: Story, **changes: object) -> tuple[Path, str]:
    experiment = vig(**changes)
    root = make_run(tmp_path / "run", [experiment], stories={experiment.id: stories})
    return root, experiment.id


def test_frames_agree_with_the_records_read_one_by_one(small: Run) -> None:
    paths = RunPaths(small.root)
    for cell in small.cells["cell"].iloc[[0, 3, -1]]:
        for path in sorted(paths.cell(cell).attempt(1).root.glob("rank-*.jsonl")):
            header, *lines = read_lines(path)
            mine = small.ranks[
                (small.ranks["cell"] == cell) & (small.ranks["rank"] == header["rank"])
            ]
            assert len(mine) == len(lines)
            assert set(mine["stage"]) == {header["stage"]}
            for line in lines:
                row = mine[(mine["phase"] == line["phase"]) & (mine["step"] == line["step"])].iloc[
                    0
                ]
                for key in ("wall_s", "cpu_s", "wait_s", "samples", "epoch", "warmup"):
                    assert row[key] == line[key]
                loss = line["loss"]
                assert np.isnan(row["loss"]) if loss is None else row["loss"] == loss
                for metric, value in line["metrics"].items():
                    assert row[metric] == value


def test_groups_hold_each_ranks_layers(small: Run) -> None:
    groups = small.groups
    cell = small.cells.loc[small.cells["layout"] == "pp2", "cell"].iloc[0]
    mine = groups[(groups["cell"] == cell) & (groups["phase"] == "train") & (groups["step"] == 3)]
    assert sorted(mine["group"]) == [*(f"block{i}" for i in range(8)), "readout"]
    ranks = small.ranks[(small.ranks["cell"] == cell) & (small.ranks["phase"] == "train")]
    total = ranks.loc[ranks["step"] == 3, "forward_s"].sum()
    assert mine["forward_s"].sum() == pytest.approx(total)


def test_a_step_is_the_slowest_rank_and_all_replicas(small: Run) -> None:
    cell = small.cells.loc[small.cells["layout"] == "dp2-pp2", "cell"].iloc[0]
    steps = small.steps[(small.steps["cell"] == cell) & (small.steps["phase"] == "train")]
    ranks = small.ranks[(small.ranks["cell"] == cell) & (small.ranks["phase"] == "train")]
    by_step = ranks.groupby("step")
    assert np.array_equal(steps["wall_s"], by_step["wall_s"].max())
    assert set(steps["samples"]) == {200}
    waited = by_step["wait_s"].sum() / by_step["wall_s"].sum()
    assert np.allclose(steps["bubble"], waited)
    assert steps["loss"].notna().all()
    assert not steps["kept"].iloc[0]
    assert steps["kept"].iloc[-1]


def test_of_forwards_computed_again_the_rank_that_takes_longest_counts(tmp_path: Path) -> None:
    cells = [vig(layout="pp2", microbatches=5)]
    root = make_run(tmp_path / "run", cells)
    assert analysis.summarise(load(root))["recompute_s"].isna().all()
    for rank, seconds in enumerate((0.001, 0.002)):
        told = f'"recompute_s": {seconds}'
        change_lines(
            records_of(root, cells[0].id, rank),
            lambda lines, told=told: [
                line.replace('"recompute_s": null', told) if '"train"' in line else line
                for line in lines
            ],
        )
    train, test = analysis.summarise(load(root))["recompute_s"]
    assert train == pytest.approx(0.002)
    assert np.isnan(test)


def test_older_records_of_stages_timed_together_tell_no_time_of_forwards_again(
    tmp_path: Path,
) -> None:
    """They have 0 of torchgpipe on several devices, whose layers have no seconds."""
    cells = [
        vig(layout="pp2", microbatches=5, engine="torchgpipe", activation_checkpointing="always")
    ]
    root = make_run(tmp_path / "run", cells)

    def older(line: str) -> str:
        record = json.loads(line)
        told = {"groups": {}, "recompute_s": 0.0} if record["kind"] == "step" else {}
        return json.dumps(record | told)

    for path in RunPaths(root).cell(cells[0].id).attempt(1).root.glob("rank-*.jsonl"):
        change_lines(path, lambda lines: [older(line) for line in lines])
    summary = analysis.summarise(load(root))
    assert summary["n"].gt(0).all()
    assert summary["recompute_s"].isna().all()


def test_cells_say_what_was_asked_and_what_it_gave(small: Run) -> None:
    gat = small.cells[(small.cells["model"] == "gat") & (small.cells["layout"] == "pp2")].iloc[0]
    assert gat["chunks"] == "halo"
    assert gat["edges_kept"] == 1.0
    assert gat["hosts"] == "node1;node2"
    assert gat["test_accuracy"] == 0.6
    assert gat["startup_s"] == pytest.approx(1.7)
    vigs = small.cells[small.cells["model"] == "vig"]
    assert set(vigs["parameters"]) == {1_120_410}
    assert small.cells["valid"].all()
    assert len(small.attempts) == len(small.cells)


def test_spans_come_with_stage_and_replica(tmp_path: Path) -> None:
    run = load(make_run(tmp_path / "run", [vig(spans=True)]))
    kinds = set(run.spans["name"])
    assert {"forward", "backward", "optimizer"} <= kinds
    forward = run.spans[(run.spans["name"] == "forward") & (run.spans["stage"] == 1)]
    assert set(forward["microbatch"]) == {0, 1}
    assert (forward["end_s"] > forward["start_s"]).all()
    # Spans are not steps, and events are neither.
    assert len(run.ranks) == 2 * (6 + 2)


@pytest.mark.parametrize(
    ("stories", "used", "status", "valid"),
    [
        ((Story(), Story()), 2, "done", True),
        ((Story(), Story(status="failed", stop_at=2)), 1, "done", True),
        ((Story(), Story(audit=(Check("labels", "invalid", "x"),))), 1, "done", True),
        (
            (Story(status="failed", stop_at=2), Story(audit=(Check("labels", "invalid", "x"),))),
            2,
            "done",
            False,
        ),
        ((Story(audit=(Check("noise", "suspect", "x"),)), Story(finished=False)), 1, "done", True),
        (
            (Story(status="failed", stop_at=2), Story(status="failed", stop_at=4)),
            2,
            "failed",
            False,
        ),
    ],
)
def test_the_newest_valid_attempt_counts(
    tmp_path: Path, stories: tuple[Story, ...], used: int, status: str, valid: bool
) -> None:
    root, _ = one(tmp_path, *stories)
    run = load(root)
    cell = run.cells.iloc[0]
    assert (cell["attempt"], cell["status"], cell["valid"]) == (used, status, valid)
    assert cell["attempts"] == len(stories)
    assert list(run.attempts["used"]) == [n + 1 == used for n in range(len(stories))]


def test_unfinished_attempts_are_listed_and_not_read(tmp_path: Path) -> None:
    root, _ = one(tmp_path, Story(finished=False, stop_at=3))
    run = load(root)
    assert run.cells.iloc[0]["status"] == "unfinished"
    assert run.attempts.iloc[0]["status"] == "unfinished"
    assert run.ranks.empty
    assert run.steps.empty
    assert analysis.summarise(run)["n"].tolist() == [0, 0]


def test_cells_never_tried_are_missing(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", [vig()])
    shutil.rmtree(root / "cells")
    run = load(root)
    assert run.cells.iloc[0]["status"] == "missing"
    assert not run.cells.iloc[0]["valid"]


def test_a_failure_is_told(tmp_path: Path) -> None:
    root, _ = one(tmp_path, Story(status="failed", stop_at=2))
    failure = load(root).cells.iloc[0]["failure"]
    assert failure == "rank 0 on node1 at train step 2: RuntimeError: planted"


def test_resumed_attempts_take_the_steps_before_from_earlier_ones(tmp_path: Path) -> None:
    """1 did steps 0-3, 2 went on from 2 and did 2-4, 3 went on from 4 and did the rest."""
    root, cell = one(
        tmp_path,
        Story(status="interrupted", stop_at=4),
        Story(status="failed", stop_at=5, resumed_from={"attempt": 1, "step": 2}, finished=False),
        Story(resumed_from={"attempt": 2, "step": 4}),
        warmup_steps=1,
    )
    run = load(root)
    train = run.steps[run.steps["phase"] == "train"]
    assert train["step"].tolist() == [0, 1, 2, 3, 4, 5]
    expected = []
    for step, attempt in enumerate([1, 1, 2, 2, 3, 3]):
        lines = read_lines(RunPaths(root).cell(cell).attempt(attempt).records(0))
        expected += [
            r["wall_s"]
            for r in lines
            if r["kind"] == "step" and r["phase"] == "train" and r["step"] == step
        ]
    assert train["wall_s"].tolist() == expected
    # The first step after each resume is as cold as the very first.
    assert train["warmup"].tolist() == [True, False, True, False, True, False]
    assert run.cells.iloc[0]["redone"] == 3
    assert len(run.steps[run.steps["phase"] == "test"]) == 2
    assert run.attempts["resumed_from"].fillna("").tolist() == ["", "1:2", "2:4"]


def test_a_resume_from_nowhere_is_damage(tmp_path: Path) -> None:
    root, _ = one(tmp_path, Story(resumed_from={"attempt": 7, "step": 2}))
    run = load(root)
    assert run.cells["status"].tolist() == ["damaged"]
    assert "resumed_from.attempt: found 7" in run.checks["detail"].iloc[0]


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    root, _ = one(tmp_path, Story(cut_short=True))
    whole = load(make_run(tmp_path / "whole", [vig()]))
    assert len(load(root).ranks) == len(whole.ranks)


def test_nan_losses_are_read(tmp_path: Path) -> None:
    root, cell = one(tmp_path, Story())
    path = RunPaths(root).cell(cell).attempt(1).records(1)
    path.write_text(path.read_text().replace('"loss": 2.3,', '"loss": NaN,'))
    run = load(root)
    assert np.isnan(run.steps[run.steps["phase"] == "train"]["loss"].iloc[0])


def test_blank_lines_are_no_records(tmp_path: Path) -> None:
    root, cell = one(tmp_path, Story())
    whole = load(root).ranks
    path = records_of(root, cell)
    path.write_text(path.read_text().replace("\n", "\n\n \n") + "\n")
    assert load(root).ranks.equals(whole)
    # A rank may have written none where another failed; a cell that is done has all.
    root, cell = one(tmp_path / "failed", Story(status="failed"))
    path = records_of(root, cell)
    path.write_text(path.read_text().partition("\n")[0] + "\n\n\n")
    assert set(load(root).ranks["rank"]) == {0}


def records_of(root: Path, cell: str, rank: int = 1) -> Path:
    return RunPaths(root).cell(cell).attempt(1).records(rank)


def damage_line(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines[3] = lines[3][:40]
    path.write_text("\n".join(lines) + "\n")


def other_schema(path: Path) -> None:
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 99', 1))


def headless(path: Path) -> None:
    path.write_text("\n".join(path.read_text().splitlines()[1:]) + "\n")


def other_phase(path: Path) -> None:
    path.write_text(path.read_text().replace('"phase": "train"', '"phase": "trian"', 1))


def no_text(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"accuracy"', b'"acc\xffracy"', 1))


def other_accuracy(path: Path) -> None:
    told = {"final": {"test_accuracy": 0.99}, "records": {path.name: {"sha256": "0" * 64}}}
    rewrite_result(path.with_name("result.json"), lambda raw: raw.update(told))


def other_threads(path: Path) -> None:
    """Which no digest covers, and core-hours are worked out from."""
    rewrite_result(
        path.with_name("result.json"), lambda raw: raw["provenance"].update(threads=1000)
    )


def appended(path: Path) -> None:
    content = path.read_bytes()
    digest = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    told = {"final": {}, "records": {path.name: digest}}
    rewrite_result(path.with_name("result.json"), lambda raw: raw.update(told))
    span = vars(SpanRecord("train", 1, "forward", 0, 0.0, 0.001))
    path.write_bytes(content + json.dumps(span).encode() + b"\n")


def edited(path: Path) -> None:
    result = path.with_name("result.json")
    result.write_text(result.read_text().replace('"train_loss": ', '"train_loss": 1'))


def digest_without_size(path: Path) -> None:
    told = {"final": {}, "records": {path.name: {"sha256": "0" * 64}}}
    rewrite_result(path.with_name("result.json"), lambda raw: raw.update(told))


def damage_group(path: Path) -> None:
    text = path.read_text()
    start = text.index("[", text.index('"readout": ')) + 1
    path.write_text(text[:start] + "0.5, " + text[start:])


def damage_result(path: Path) -> None:
    path.with_name("result.json").write_text('{"schema": 1, "cell": ')


def other_result_schema(path: Path) -> None:
    result = path.with_name("result.json")
    result.write_text(json.dumps(json.loads(result.read_text()) | {"schema": 99}))


def empty_result(path: Path) -> None:
    path.with_name("result.json").write_text("")


def change_lines(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")


def shorter(path: Path) -> None:
    """Two of six training steps less."""
    change_lines(path, lambda lines: [*lines[:5], *lines[7:]])


def line_twice(path: Path) -> None:
    change_lines(path, lambda lines: [*lines[:4], *lines[3:]])


def of_another_cell(path: Path) -> None:
    other = next(one for one in path.parents[2].iterdir() if one != path.parents[1])
    shutil.copy(other / "attempt-1" / path.name, path)


def field_of(name: str, value: str) -> Callable[[Path], None]:
    """Another value in the second training step."""

    def change(path: Path) -> None:
        change_lines(
            path,
            lambda lines: [
                re.sub(f'"{name}": [^,]*', f'"{name}": {value}', line) if number == 2 else line
                for number, line in enumerate(lines)
            ],
        )

    return change


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (damage_line, r"rank-0001\.jsonl:4: found damaged JSON"),
        (other_schema, r"rank-0001\.jsonl: schema: found 99; allowed: 1"),
        (headless, r"rank-0001\.jsonl: found no header line"),
        (other_phase, r"rank-0001\.jsonl:2: found a record without kind, phase or step"),
        (damage_group, r"rank-0001\.jsonl: groups\.readout"),
        (Path.unlink, r"rank-0001\.jsonl: found no such file"),
        (no_text, r"rank-0001\.jsonl:2: found bytes that are no UTF-8"),
        (
            other_accuracy,
            r"final\.test_accuracy: found 0\.99; allowed: 0\.\d+, the accuracy",
        ),
        (appended, r"rank-0001\.jsonl: content: found records after byte \d+"),
        (edited, r"result\.json: content: found changed since it was written"),
        (digest_without_size, r"result\.json: records\.rank-0001\.jsonl"),
        (empty_result, r"result\.json: found"),
        (shorter, r"rank-0001\.jsonl: train steps: found 4 steps; allowed: 6"),
        (line_twice, r"rank-0001\.jsonl: train step: found 2 after 2"),
        (of_another_cell, r"rank-0001\.jsonl: cell: found vig-.*as its path says"),
        (field_of("wall_s", "NaN"), r"rank-0001\.jsonl: train step 1: wall_s: found nan"),
        (field_of("wall_s", "-0.5"), r"rank-0001\.jsonl: train step 1: wall_s: found -0\.5"),
        (field_of("recompute_s", "9.5"), r"train step 1: recompute_s: found 9\.5; allowed: 0 to "),
        (
            field_of("wait_s", "-1.0"),
            r"train step 1: wait_s: found -1\.0; allowed: 0\.\d+, the rest",
        ),
        (
            field_of("peak_rss_mib", "-5.0"),
            r"train step 1: peak_rss_mib: found -5\.0; allowed: 0 or",
        ),
        (other_threads, r"result\.json: provenance\.threads: found 1000; allowed: \d+, as rank-"),
        (damage_result, r"result\.json: found damaged JSON"),
        (other_result_schema, r"result\.json: schema: found 99; allowed: 1"),
    ],
)
def test_damage_sets_its_cell_apart_and_no_other(
    tmp_path: Path, damage: Callable[[Path], None], says: str
) -> None:
    cells = [vig(repeat=repeat) for repeat in range(4)]
    root = make_run(tmp_path / "run", cells)
    whole = load(root)
    damage(records_of(root, cells[1].id))
    run = load(root)
    assert run.cells["counts"].tolist() == [True, False, True, True]
    assert run.cells["status"].tolist() == ["done", "damaged", "done", "done"]
    (check,) = run.checks.to_dict("records")
    assert (check["cell"], check["name"], check["verdict"]) == (cells[1].id, "damaged", "invalid")
    assert re.search(says, check["detail"])
    for name in ("steps", "ranks", "groups"):
        before = getattr(whole, name)
        kept = before[before["cell"] != cells[1].id].reset_index(drop=True)
        assert getattr(run, name)["wall_s" if name != "groups" else "forward_s"].tolist() == (
            kept["wall_s" if name != "groups" else "forward_s"].tolist()
        )
    row = analysis.summarise(run).iloc[0]
    assert (row["cells_used"], row["cells"]) == (3, 4)
    assert "1 of 4 cells left out: 1 damaged" in row["note"]


def test_a_whole_run_of_damage_has_no_valid_cell(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", [vig(), vig(repeat=1)])
    for path in root.glob("cells/*/attempt-1/rank-0001.jsonl"):
        damage_line(path)
    run = load(root)
    assert set(run.cells["status"]) == {"damaged"}
    assert run.steps.empty
    assert (analysis.summarise(run)["n"] == 0).all()


def test_the_first_damage_that_is_met_is_told(tmp_path: Path) -> None:
    """Digests in the result would say of a file that is gone no more than that."""
    root, cell = one(tmp_path, Story())
    result = RunPaths(root).cell(cell).attempt(1).result
    digest = {"rank-0001.jsonl": {"size": 9, "sha256": "0" * 64}}
    rewrite_result(result, lambda raw: raw.update(records=digest))
    records_of(root, cell).unlink()
    assert "found no such file" in load(root).checks["detail"].iloc[0]


def test_of_several_attempts_the_newest_must_be_whole(tmp_path: Path) -> None:
    """An older one that is damaged is in no number; a newer one might have been the valid one."""
    root, cell = one(tmp_path / "older", Story(), Story())
    damage_result(RunPaths(root).cell(cell).attempt(1).records(0))
    run = load(root)
    assert run.cells["valid"].tolist() == [True]
    assert run.attempts["status"].tolist() == ["damaged", "done"]
    root, cell = one(tmp_path / "newer", Story(), Story())
    damage_result(RunPaths(root).cell(cell).attempt(2).records(0))
    run = load(root)
    assert run.cells["status"].tolist() == ["damaged"]
    assert run.steps.empty


def test_what_is_no_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a run folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"manifest\.jsonl"):
        load(tmp_path)


def test_a_copied_folder_loads_as_the_original(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", [vig()])
    copy = shutil.copytree(root, tmp_path / "a laptop" / "copy")
    assert load(copy).steps.equals(load(root).steps)


def test_batches_of_any_size_give_the_same_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gat = Experiment.model_validate(
        {"model": Gat(), "data": PublishedGraph(name="cora"), "layout": "pp2"}
    )
    root = make_run(tmp_path / "run", [vig(), gat, vig(layout="dp2-pp2", spans=True)])
    together = load(root)
    monkeypatch.setattr("analysis.loading.rank_files._BATCH_BYTES", 1)
    apart = load(root)
    for name in ("steps", "ranks", "groups", "spans"):
        keys = ["cell", "phase", "step"]
        one, other = getattr(together, name), getattr(apart, name)
        assert len(one) == len(other)
        seconds = "wall_s" if "wall_s" in one else one.columns[-1]
        assert np.array_equal(
            one.groupby(keys, observed=True)[seconds].sum(),
            other.groupby(keys, observed=True)[seconds].sum(),
        )


def test_the_packages_names_stay_functions_after_their_modules_are_imported() -> None:
    assert callable(analysis.load)
    assert callable(analysis.summarise)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = analysis.nothing
