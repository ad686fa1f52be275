"""What users get wrong: each is told in one line naming the place, with status 2, and nothing is
written."""

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
    ("name: sweep", "name: [a]", "name: found ['a']; allowed: text"),
    ("name: sweep", "name: a/b", "name: found 'a/b' with '/'; allowed: "),
    ("name: sweep", "name: ''", "name: found ''; allowed: "),
    ("name: sweep\n", "", "name: found nothing; allowed: "),
    ("name: sweep", "name: sweep\nname: other", ":2: found key 'name' twice"),
    ("name: sweep", "name: sweep\ndescription: 3", "description: found 3; allowed: text"),
    ("name: sweep", "name: sweep\ndata_root: /nowhere/at/all", "data_root: found /nowhere/at/all"),
    ("name: sweep", "name: {", ":3: found "),
    ("train_steps: 3", "train_stpes: 3", "defaults.train_stpes: found an unknown key (is"),
    ("train_steps: 3", "train_steps: 0", "defaults.train_steps: found 0; allowed: at least 1"),
    ("train_steps: 3", "train_steps: '3'", "defaults.train_steps: found '3'; allowed: a whole"),
    ("train_steps: 3", "train_steps: 2.5", "defaults.train_steps: found 2.5; allowed: a whole"),
    ("train_steps: 3", "train_steps: true", "defaults.train_steps: found True; allowed: a whole"),
    ("train_steps: 3", "train_steps:", "defaults.train_steps: found nothing; allowed: a whole"),
    ("train_steps: 3", "train_steps: [3]", "defaults.train_steps: found [3]; allowed: a whole"),
    ("{train_steps: 3}", "[1]", "defaults: found [1]; allowed: a mapping"),
    ("{train_steps: 3}", "3", "defaults: found 3; allowed: a mapping"),
    ("train_steps: 3", "optimizer: {rl: 1}", "defaults.optimizer.rl: found an unknown key; al"),
    ("train_steps: 3", "optimizer: {lr: -1}", "defaults.optimizer.lr: found -1; allowed: more"),
    ("train_steps: 3", "optimizer: {lr: .nan}", "defaults.optimizer.lr: found nan; allowed: "),
    ("train_steps: 3", "optimizer: adam", "defaults.optimizer: found 'adam'; allowed: a mapping"),
    ("train_steps: 3", "optimizer: {name: lion}", "defaults.optimizer.name: found 'lion'; allow"),
    ("train_steps: 3", "schedule: zero", "defaults.schedules: found 'zero'; allowed: 'gpipe'"),
    ("train_steps: 3", "device: tpu", "defaults.device: found 'tpu'; allowed: 'cpu' or 'gpu'"),
    ("train_steps: 3", "dtype: bfloat16", "defaults.dtype: found 'bfloat16'; allowed: 'float32'"),
    ("train_steps: 3", "chunks: whole", "defaults.chunks: found 'whole'; allowed: 'contiguous'"),
    ("train_steps: 3", "engine: magic", "defaults.engine: found 'magic'; allowed: "),
    ("train_steps: 3", "seed: -1", "defaults.seeds: found -1; allowed: at least 0"),
    ("train_steps: 3", "repeats: 0", "defaults.repeats: found 0; allowed: at least 1"),
    ("train_steps: 3", "repeats: 100000000", "defaults.repeats: found 100000000; allowed: at mo"),
    ("train_steps: 3", "repeats: 50000", "grids: found 200000 cells; allowed: at most 100000"),
    ("train_steps: 3", f"train_steps: {9**30}", f"defaults.train_steps: found {9**30}; allowed: "),
    ("train_steps: 3", f"seeds: [{2**64}]", f"defaults.seeds: found {2**64}; allowed: at most 18"),
    ("nodes: 100", f"nodes: {2**63}", f"grids.1.data.nodes: found {2**63}; allowed: at most 92233"),
    ("train_steps: 3", "repeat: 1", "defaults.repeat: found an unknown key (is repeats meant?)"),
    ("train_steps: 3", "balance: fair", "defaults.balance: found 'fair'; allowed: a list or 'cos"),
    ("train_steps: 3", "balance: [1, 2, 3]", "defaults.balance: found [1, 2, 3]; allowed: one c"),
    ("train_steps: 3", "balance: [1, 1]", "balance: found [1, 1]; allowed: counts that add up"),
    ("grids:", "grid:", "grid: found an unknown key (is grids meant?); allowed: "),
    ("layouts: [seq, pp2]", "layouts: [pp3x]", "grids.0.layouts: found 'pp3x'; allowed: seq"),
    ("layouts: [seq, pp2]", "layouts: [pp0]", "grids.0.layouts: found 'pp0'; allowed: seq"),
    ("layouts: [seq, pp2]", "layouts: [2]", "grids.0.layouts: found 2; allowed: seq"),
    ("layouts: [seq, pp2]", "layouts: []", "grids.0.layouts: found []; allowed: at least 1"),
    ("layouts: [seq, pp2]", "layouts: pp6", "layout: found pp6; allowed: at most 5 stages"),
    ("layouts: [seq, pp2]", "layouts: dp11", "grids.0.batch_size: found 20 x 11 replicas; allo"),
    ("layouts: [seq, pp2]", "layout: seq\n    layouts: pp2", "grids.0.layout: found both layout"),
    ("layouts: [seq, pp2]", "layots: [seq]", "grids.0.layots: found an unknown key (is layouts"),
    ("layouts: [seq, pp2]", "seq_microbatches: 7", "grids.0.seq_microbatches: found 7; allowed: a"),
    ("layouts: [seq, pp2]", "batchnorm: macro", "grids.0.batchnorm: found 'macro'; allowed: 'mi"),
    ("layouts: [seq, pp2]", "chunks: halo", "grids.0.chunks: found 'halo'; allowed: nothing here"),
    ("microbatches: [5]", "microbatches: [3]", "grids.0.microbatches: found 3; allowed: a divisor"),
    ("microbatches: [5]", "microbatches: [x]", "grids.0.microbatches: found 'x'; allowed: a whole"),
    ("    batch_size: 20\n", "", "grids.0.batch_size: found none; allowed: images a mini-batch"),
    ("batch_size: 20", "batch_size: 201", "grids.0."),
    ("blocks: 2", "blocs: 2", "grids.0.models.blocs: found an unknown key (is blocks meant?)"),
    ("blocks: 2", "blocks: 0", "grids.0.models.blocks: found 0; allowed: at least 1"),
    ("blocks: 2", "blocks: 1000000000", "grids.0.models.blocks: found 1000000000; allowed: at mo"),
    ("[gat]", "[{name: gcn, layers: 2001}]", "grids.1.models.layers: found 2001; allowed: at most"),
    ("name: vig", "name: vgi", "grids.0.models.name: found 'vgi'; allowed: gat, gatv2, gcn"),
    ("{name: vig, blocks: 2}", "{blocks: 2}", "grids.0.models.name: found nothing; allowed: gat"),
    ("{name: vig, blocks: 2}", "3", "grids.0.models: found 3; allowed: a mapping"),
    ("{name: vig, blocks: 2}", "gat", "grids.0.data: found 'synthetic-cifar10'; allowed: graph"),
    ("test: 200", "tset: 200", "grids.0.data.tset: found an unknown key (is test meant?)"),
    ("test: 200", "test: few", "grids.0.data.test: found 'few'; allowed: a whole number"),
    ("name: synthetic-cifar10", "name: imagenet", "grids.0.data.name: found 'imagenet'; allowed"),
    ("nodes: 100", "nodes: 3", "grids.1.data.nodes: found 3; allowed: at least 10"),
    ("edges: 400}]", "edges: 400}]\n    batch_size: 5", "grids.1.batch_size: found 5; allowed: n"),
    ("edges: 400}]", "edges: 400}]\n    microbatches: 101", "grids.1.microbatches: found 101; al"),
    ("  - models: [gat]\n", "  - seeds: 1\n", "grids.1.models: found nothing; allowed: a value"),
    ("  - models: [gat]\n    data:", "  - 3\n  - data:", "grids.1: found 3; allowed: a mapping"),
]  # fmt: skip

# A list with a value twice, in place of which text of SPEC -> how its line goes on.
TWICE = [
    ("layouts: [seq, pp2]", "layouts: [seq, seq]", "0.layouts: found 'seq' twice; allowed: each "),
    (
        "layouts: [seq, pp2]",
        "layouts: [pp2, dp1-pp2]",
        "0.layouts: found 'pp2' twice; ",
    ),
    ("layouts: [seq, pp2]", "seq_microbatches: [5, 5]", "0.seq_microbatches: found 5 twice; "),
    ("layouts: [seq, pp2]", "schedules: [gpipe, gpipe]", "0.schedules: found 'gpipe' twice; "),
    ("layouts: [seq, pp2]", "seeds: [0, 1, 0]", "0.seeds: found 0 twice; allowed: each value once"),
    ("microbatches: [5]", "microbatches: [5, 1, 5]", "0.microbatches: found 5 twice; allowed: "),
    ("batch_size: 20", "batch_size: [20, 10, 20]", "0.batch_size: found 20 twice; allowed: each "),
    ("[gat]", "[gat, {name: gat, heads: 8}]", "1.models: found 'gat' twice; "),
    (
        "[{name: synthetic-ci",
        "[cora, {name: cora}, {name: synthetic-ci",
        "0.data: found 'cora' twice; ",
    ),
    ("edges: 400}]", "edges: 400}]\n    chunks: [halo, halo]", "1.chunks: found 'halo' twice; "),
]

# Flags beside a good spec -> the whole line's beginning.
FLAGS = [
    (["--set", "train_steps"], "error: --set: found 'train_steps'; allowed: key=value"),
    (["--set", "=5"], "error: --set: found '=5'; allowed: key=value"),
    (
        ["--set", "seed=5", "--set", "seeds=5"],
        "error: --set: seeds: found 'seeds=5' and 'seed=5'; ",
    ),
    (["--set", "data.test=5", "--set", "data.test =5"], "error: --set: data.test: found 'data.te"),
    (["--set", "trian_steps=5"], "error: --set: trian_steps: found an unknown key (is train_steps"),
    (["--set", "data.trian=5"], "error: --set: data.trian: found an unknown key (is train meant?)"),
    (["--set", "train_steps.x=5"], "error: --set: train_steps.x: found an unknown key; allowed: "),
    (["--set", "grids.7.seed=1"], "error: --set: grids.7.seed: found grid 7; allowed: 0 to 1"),
    (["--set", "grids.0.sed=1"], "error: --set: grids.0.sed: found an unknown key (is seed"),
    (["--set", "train_steps=[1"], "error: --set train_steps:1: found "),
    (["--set", "layouts=[pp3x]"], "error: spec.yaml: defaults.layouts: found 'pp3x'; allowed"),
    (["--name", "a/b"], "error: --name: found 'a/b' with '/'; allowed: a folder name"),
    (["--name", "a%j"], "error: --name: found 'a%j' with '%'; allowed: a folder name"),
    (["--data-root", "/nowhere"], "error: --data-root: found /nowhere, which is no folder; allo"),
    (["--data-root", ".", "--set", "grids.1.data=cora"], "error: "),
    (["--site", "cineca"], "error: --site: found 'cineca'; allowed: a site of a site file"),
    (["--site-file", "no.yaml"], "error: no.yaml: found no such file; allowed: a site file"),
    (["--cluster", "cloud"], "error: --cluster: found 'cloud'; allowed: slurm, local\n"),
    (["--after", "7"], "error: --after: found 7 with --cluster local; allowed: --cluster slurm"),
    (
        ["--report"],
        "error: --report: found --cluster local without --wait; allowed: --wait with it",
    ),
    (["--slurm", "=x"], "error: --slurm: found '=x'; allowed: NAME=VALUE"),
    (["--slurm", "nodes=3"], "error: site: slurm.nodes: found nodes; allowed: other options of"),
    (["--slurm", "time=1"], "error: site: time: found 1, and signal 90 s before its end; allowed"),
    (["--slurm", "cpus-per-task=no"], "error: site: settings.cpus_per_task: found 'no'; allowed"),
    (
        ["--slurm", "mem=64G"],
        "error: command line: found --mem 64G for a local run; allowed: --clu",
    ),
    (["--slurm", "reservation=x"], "error: command line: found --reservation x for a local run"),
    (["--slurm", "exclusive"], "error: command line: found --exclusive for a local run; allowed:"),
    (["--frobnicate"], "error: command line: found No such option: --frobnicate"),
    (["--runs", "spec.yaml/x"], "error: --runs: found "),
    (
        ["--runs", "/tmp/x\udce9"],
        r"error: --runs: found '/tmp/x\udce9', with bytes that are no UTF",
    ),
    (["--runs", "x\udce9", "--dry-run"], "error: --runs: found "),
]

SITES = [
    ("sites: {}", "sites: found no site; allowed: at least one"),
    ("sits: {}", "sits: found an unknown key (is sites meant?); allowed: default, sites"),
    ("sites: 3", "sites: found 3; allowed: a mapping"),
    ("sites: {a: {partion: x}}", "sites.a.partion: found an unknown key (is partition meant?)"),
    ("sites: {a: {partition: 'x y'}}", "sites.a.partition: found 'x y'; allowed: "),
    ("sites: {a: {partition: 'x;rm'}}", "sites.a.partition: found 'x;rm'; allowed: "),
    ("sites: {a: {cpus_per_task: 0}}", "sites.a.cpus_per_task: found 0; allowed: at least 1"),
    ("sites: {a: {tasks_per_node: two}}", "sites.a.tasks_per_node: found 'two'; allowed: a whole"),
    ("sites: {a: {time: soon}}", "sites.a.time: found 'soon'; allowed: minutes, "),
    ("sites: {a: {time: 0}}", "sites.a.time: found '0'; allowed: more than no time"),
    ("sites: {a: {mem: lots}}", "sites.a.mem: found 'lots'; allowed: "),
    ("sites: {a: {modules: gcc}}", "sites.a.modules: found 'gcc'; allowed: a list"),
    ("sites: {a: {modules: ['gcc; rm']}}", "sites.a.modules.0: found 'gcc; rm'; allowed: "),
    ("sites: {a: {setup: ['']}}", "sites.a.setup.0: found ''; allowed: one line"),
    ("sites: {a: {interface: 'ib0 x'}}", "sites.a.interface: found 'ib0 x'; allowed: "),
    ("sites: {a: {signal: 1}}", "sites.a.signal: found 1; allowed: at least 5"),
    ("sites: {a: {gres: 'gpu:1', gpus_per_node: 1}}", "sites.a.gres: found both gres and gpus_"),
    ("sites: {a: {}, b: {}}", "default: found nothing; allowed: --site or a default, of a, b"),
    ("default: c\nsites: {a: {}}", "default: found 'c'; allowed: a"),
    ("sites: {a: {time: 1}}", "sites.a.time: found 1, and signal 90 s before its end; allowed"),
    ("sites: {a: {slurm: {array: 3}}}", "sites.a.slurm.array: found array; allowed: other opt"),
    ("sites: {a: {slurm: 3}}", "sites.a.slurm: found 3; allowed: a mapping"),
    (
        "sites: {a: {slurm: {nice: 1.5}}}",
        "sites.a.slurm.nice: found 1.5; allowed: true or false or ",
    ),
    ("sites: {a: {exclusive: 1}}", "sites.a.exclusive: found 1; allowed: true or false or "),
    ("default: 3\nsites: {a: {}}", "default: found 3; allowed: a"),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with one good spec, and no site file from elsewhere."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("GNNHPC_SITE_FILE", "GNNHPC_DATA"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "spec.yaml").write_text(SPEC)
    return tmp_path


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


def test_the_spec_without_a_mistake_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["submit", "spec.yaml", "--dry-run", "--paired"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dry", [True, False])
@pytest.mark.parametrize(("old", "new", "line"), SPECS)
def test_mistakes_in_a_spec(
    old: str, new: str, line: str, dry: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in SPEC
    (folder / "spec.yaml").write_text(SPEC.replace(old, new, 1))
    flags = ["--dry-run"] if dry else ["--cluster", "local", "--wait"]
    err = complaint(capsys, "submit", "spec.yaml", *flags)
    prefix = "error: spec.yaml" if line.startswith(":") else "error: spec.yaml: "
    assert err.startswith(prefix + line), err


@pytest.mark.parametrize(("old", "new", "line"), TWICE)
def test_values_that_are_there_twice(
    old: str, new: str, line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two equal cells one would be left, without a word."""
    assert old in SPEC
    (folder / "spec.yaml").write_text(SPEC.replace(old, new, 1))
    err = complaint(capsys, "submit", "spec.yaml", "--dry-run")
    assert err.startswith(f"error: spec.yaml: grids.{line}"), err


@pytest.mark.parametrize(("flags", "line"), FLAGS)
def test_mistakes_in_flags(flags: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    err = complaint(capsys, "submit", "spec.yaml", "--cluster", "local", *flags)
    assert err.startswith(line), err


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_spec_or_data_of_a_path_that_is_no_utf_8(
    dry: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run folder's files name them."""
    (there := folder / "x\udce9").mkdir()
    (there / "spec.yaml").write_text(SPEC)
    flags = ["--cluster", "local", *dry]
    err = complaint(capsys, "submit", "spec.yaml", "--data-root", str(there), *flags)
    assert err.startswith(f"error: --data-root: found {str(there)!r}, with bytes that are no UTF-8")
    err = complaint(capsys, "submit", str(there / "spec.yaml"), *flags)
    assert err.startswith(f"error: SPEC.yaml: found {str(there / 'spec.yaml')!r}, with bytes that")


@pytest.mark.parametrize("flags", [["--after", "nosuch"], ["--after", "7"], ["--report"]])
def test_a_dry_run_refuses_what_submitting_refuses(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    submit = ["submit", "spec.yaml", "--cluster", "local", *flags]
    assert complaint(capsys, *submit, "--dry-run") == complaint(capsys, *submit)


def test_a_dry_run_waits_for_runs_and_jobs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Without Slurm, which it does not ask whether there is such a job."""
    submit = ["submit", "spec.yaml", "--dry-run"]
    err = complaint(capsys, *submit, "--after", "nosuch")
    assert err == "error: --after: found 'nosuch'; allowed: a run folder, or the id of a job\n"
    assert main([*submit, "--after", "7"]) == 0


@pytest.mark.parametrize(("text", "line"), SITES)
def test_mistakes_in_a_site_file(
    text: str, line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "site.yaml").write_text(text)
    err = complaint(capsys, "submit", "spec.yaml", "--cluster", "local")
    assert err.startswith(f"error: site.yaml: {line}"), err
    assert complaint(capsys, "site", "check") == err


def test_tasks_that_do_not_divide_the_ranks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "site.yaml").write_text("sites: {a: {tasks_per_node: 2}}")
    err = complaint(capsys, "submit", "spec.yaml", "--cluster", "local", "--set", "layouts=[pp3]")
    assert err == (
        "error: site: tasks_per_node: found 2 for the 3 ranks of pp3; allowed: a divisor: 1, 3\n"
    )


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (None, "error: other.yaml: found no such file; allowed: a sweep spec"),
        (b"\xff\xfe", "error: other.yaml: found bytes that are not UTF-8"),
        (b"", "error: other.yaml: found nothing; allowed: a mapping with the keys name"),
        (b"- 1\n", "error: other.yaml: found a list; allowed: a mapping"),
        (b"a: \x01\n", "error: other.yaml: found "),
    ],
)
def test_files_that_are_no_spec(
    content: bytes | None, line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (folder / "other.yaml").write_bytes(content)
    assert complaint(capsys, "submit", "other.yaml").startswith(line)


def test_a_folder_is_no_spec(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "inside").mkdir()
    assert complaint(capsys, "submit", "inside").startswith("error: inside: found a folder; ")


def test_no_slurm_here(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    err = complaint(capsys, "submit", "spec.yaml")
    assert err == "error: --cluster: found slurm, but no sbatch here; allowed: local\n"


@pytest.mark.parametrize(
    "arguments", [["status"], ["rerun", "--failed"], ["cancel"], ["logs", "CELL"]]
)
def test_folders_that_are_no_run(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    (folder / "empty").mkdir()
    err = complaint(capsys, command, "nowhere", *rest)
    assert err.startswith("error: nowhere: found no such folder; allowed: a run folder")
    err = complaint(capsys, command, "empty", *rest)
    assert err.startswith("error: empty: found no manifest.jsonl in it; allowed: a run folder")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["rerun", "run", "--cluster", "loc"], "--cluster: found 'loc'; allowed: slurm, local"),
        (["schema", "swep"], "what: found 'swep'; allowed: sweep, site"),
    ],
)
def test_choices_are_named(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint(capsys, *arguments) == f"error: {line}\n"


@pytest.mark.parametrize("arguments", [["frob"], ["status"], ["submit"], ["logs"]])
def test_command_lines_that_are_none(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaint(capsys, *arguments).startswith("error: command line: found ")
