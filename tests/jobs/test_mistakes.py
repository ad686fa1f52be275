"""What users get wrong is one line that names the place, with status 2, and nothing is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jobs.cli import main

SPEC = """\
name: sweep
defaults: {train_steps: 3}
grids:
  - models: [{name: vig, blocks: 2}]
    data: [{name: synthetic-cifar10, train: 200, test: 200}]
    layouts: [seq, pp2]
    batch_size: 20
    microbatches: [5]
  - models: [gat]
    data: [{name: synthetic-citation, nodes: 100, edges: 400}]
"""

# What replaces which text of SPEC -> how the line goes on after the file's name.
SPECS = [
    ("name: sweep", "nam: sweep", "nam: found an unknown key (is name meant?); allowed: "),
    ("name: sweep", "name: a/b", "name: found 'a/b'; allowed: "),
    ("name: sweep\n", "", "name: found nothing; allowed: "),
    ("name: sweep", "name: sweep\nname: other", ":2: found key 'name' twice"),
    ("name: sweep", "name: sweep\ndata_root: /nowhere/at/all", "data_root: found /nowhere/at/all"),
    ("train_steps: 3", "train_stpes: 3", "defaults.train_stpes: found an unknown key (is"),
    ("train_steps: 3", "train_steps: 0", "defaults.train_steps: found 0; allowed: at least 1"),
    ("train_steps: 3", "optimizer: {rl: 1}", "defaults.optimizer.rl: found an unknown key; al"),
    ("train_steps: 3", "repeats: 50000", "grids: found up to 200000 cells; allowed: at most"),
    ("train_steps: 3", "balance: [1, 1]", "defaults.balance: found [1, 1]; allowed: counts th"),
    ("layouts: [seq, pp2]", "layouts: [pp3x]", "grids.0.layouts.0: found 'pp3x'; allowed: se"),
    ("layouts: [seq, pp2]", "layouts: pp6", "grids.0.layouts: found pp6; allowed: at most 5 st"),
    ("layouts: [seq, pp2]", "layouts: dp11", "grids.0.batch_size: found 20 x 11 replicas; allo"),
    ("microbatches: [5]", "microbatches: [3]", "grids.0.microbatches: found 3; allowed: a divisor"),
    ("    batch_size: 20\n", "", "grids.0.batch_size: found none; allowed: images a mini-batch"),
    ("blocks: 2", "blocs: 2", "grids.0.models.0.blocs: found an unknown key (is blocks me"),
    ("name: vig", "name: vgi", "grids.0.models.0.name: found 'vgi'; allowed: gat, gatv2, gc"),
    ("{name: vig, blocks: 2}", "gat", "grids.0.data: found 'synthetic-cifar10'; allowed: graph"),
    ("test: 200", "tset: 200", "grids.0.data.0.tset: found an unknown key (is test meant?)"),
    ("name: synthetic-cifar10", "name: imagenet", "grids.0.data.0.name: found 'imagenet'; allow"),
    ("  - models: [gat]\n", "  - seeds: 1\n", "grids.1.models: found nothing; allowed: a value"),
    ("  - models: [gat]\n    data:", "  - 3\n  - data:", "grids.1: found 3; allowed: a mapping"),
]  # fmt: skip

# Flags beside a good spec -> the whole line's beginning.
FLAGS = [
    (["--set", "train_steps"], "--set: found 'train_steps'; allowed: key=value"),
    (
        ["--set", "trian_steps=5"],
        "--set: defaults.trian_steps: found an unknown key (is train_steps",
    ),
    (
        ["--set", "data.trian=5"],
        "--set: grids.0.data.0.trian: found an unknown key (is train meant?)",
    ),
    (["--set", "train_steps.x=5"], "--set: train_steps.x: found no such setting in this sweep"),
    (["--set", "grids.7.seed=1"], "--set: grids.7.seed: found grid 7; allowed: 0 to 1"),
    (["--set", "train_steps=[1"], "--set train_steps:1: found "),
    (["--name", "a/b"], "--name: found 'a/b'; allowed: a folder name"),
    (["--data-root", "/nowhere"], "--data-root: found /nowhere, which is no folder; allo"),
    (["--site", "cineca"], "--site: found 'cineca'; allowed: a site of a site file"),
    (["--cluster", "cloud"], "--cluster: found 'cloud'; allowed: slurm, local\n"),
    (["--after", "7"], "--after: found 7 with --cluster local; allowed: --cluster slurm"),
    (["--slurm", "nodes=3"], "site: settings.slurm.nodes: found nodes; allowed: other op"),
    (["--slurm", "time=1"], "site: settings.time: found 1, and signal 90 s before its en"),
    (["--slurm", "mem=64G"], "--slurm: found mem with --cluster local; allowed: --cluste"),
    (["--frobnicate"], "command line: found no such option: --frobnicate"),
    (["--runs", "spec.yaml/x"], "--runs: found "),
]

SITES = [
    ("sites: {}", "sites: found {}; allowed: at least 1 of them"),
    ("sits: {}", "sits: found an unknown key (is sites meant?); allowed: default, sites"),
    ("sites: {a: {partion: x}}", "sites.a.partion: found an unknown key (is partition meant?)"),
    ("sites: {a: {tasks_per_node: two}}", "sites.a.tasks_per_node: found 'two'; allowed: a whole"),
    ("sites: {a: {time: soon}}", "sites.a.time: found 'soon'; allowed: minutes, "),
    ("sites: {a: {mem: lots}}", "sites.a.mem: found 'lots'; allowed: "),
    ("sites: {a: {interface: ^lo}}", "sites.a.interface: found '^lo'; allowed: "),
    ("sites: {a: {}, b: {}}", "default: found nothing; allowed: --site or a default, of a, b"),
    ("default: c\nsites: {a: {}}", "default: found 'c'; allowed: a"),
    ("sites: {a: {time: 1}}", "sites.a.time: found 1, and signal 90 s before its end; allowed"),
    ("sites: {a: {gres: x, gpus_per_node: 1}}", "sites.a.gres: found both gres and gpus_per_nod"),
    ("sites: {a: {slurm: {array: 3}}}", "sites.a.slurm.array: found array; allowed: other opt"),
    ("sites: {a: {slurm: {gpus-per-task: 1}}}", "sites.a.slurm.gpus-per-task: found gpus-per-task"),
    ("sites: {a: {slurm: {mem: 1G}}}", "sites.a.slurm.mem: found mem; allowed: the site's key mem"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder with one good spec, and no site file from elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("GNNHPC_SITE_FILE", "GNNHPC_DATA"):
        monkeypatch.delenv(name, raising=False)
    Path("spec.yaml").write_text(SPEC)


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line a command prints; it must end with status 2 and write nothing."""
    before = sorted(os.walk("."))
    capsys.readouterr()
    status = main(list(arguments))
    out, err = capsys.readouterr()
    assert status == 2, out + err
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert sorted(os.walk(".")) == before
    return err


@pytest.mark.parametrize(("old", "new", "line"), SPECS)
def test_mistakes_in_a_spec(
    old: str, new: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in SPEC
    Path("spec.yaml").write_text(SPEC.replace(old, new, 1))
    err = complaint(capsys, "submit", "spec.yaml", "--cluster", "local")
    assert err.removeprefix("error: spec.yaml").removeprefix(": ").startswith(line), err


@pytest.mark.parametrize(("flags", "line"), FLAGS)
def test_mistakes_in_flags(flags: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    err = complaint(capsys, "submit", "spec.yaml", "--cluster", "local", *flags)
    assert err.startswith(f"error: {line}"), err


@pytest.mark.parametrize(("text", "line"), SITES)
def test_mistakes_in_a_site_file(text: str, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("site.yaml").write_text(text)
    err = complaint(capsys, "site", "check")
    assert err.startswith(f"error: site.yaml: {line}"), err


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\xff\xfe", "bytes that are not UTF-8"),
        (b"", "nothing; allowed: a mapping with the keys name"),
        (b"- 1\n", "a list; allowed: a mapping"),
    ],
)
def test_files_that_are_no_spec(
    content: bytes, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.yaml").write_bytes(content)
    assert complaint(capsys, "submit", "other.yaml").startswith(f"error: other.yaml: found {line}")


@pytest.mark.parametrize("words", ["status", "rerun --failed", "cancel", "logs CELL"])
def test_folders_that_are_no_run(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *rest = words.split()
    err = complaint(capsys, command, "nowhere", *rest)
    assert err.startswith("error: nowhere: found no such folder; allowed: a run folder")
