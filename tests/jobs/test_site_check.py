"""Site files, and what does not fit the cluster they are for."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from jobs.cli import main
from jobs.slurm.site import Site
from jobs.slurm.site_check import parse_sinfo, site_mismatches
from jobs.slurm.site_files import find_site_files, load_site

SINFO = """\
main*|up|1-00:00:00|4|16|64000|(null)|skylake,ib
gpu|up|infinite|2|32+|128000+|gpu:a100:4(S:0-1)|ib
old|down|1:00:00|1|4|8000|(null)|(null)
"""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No site file but what a test writes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GNNHPC_SITE_FILE", raising=False)


@pytest.mark.parametrize(
    ("site", "words"),
    [
        (Site(), []),
        (Site(partition="gpu", gres="gpu:2", cpus_per_task=32, time="9-0", constraint="ib"), []),
        (Site(partition="gpu", gpus_per_node=2), []),
        (Site(partition="fast"), ["partition: found 'fast'; allowed: gpu, main, old"]),
        (Site(partition="old"), ["partition: found old, which is down"]),
        (Site(time="2-0"), ["time: found 2-0; allowed: at most 1440 minutes"]),
        (Site(cpus_per_task=9, tasks_per_node=2), ["cpus_per_task: found 9 for 2 tasks a node"]),
        (Site(mem="65G"), ["mem: found 65G; allowed: 64000M a node"]),
        (Site(gpus_per_node=1), ["gpus_per_node: found 1; allowed: no GPUs in this partition"]),
        (Site(constraint="skylake&sapphire"), ["constraint: found sapphire; allowed: ib, skylake"]),
        (Site(container="no-such-program exec x.sif"), ["container: found no-such-program"]),
    ],
)
def test_settings_are_held_against_what_sinfo_says(site: Site, words: list[str]) -> None:
    found = site_mismatches(site, parse_sinfo(SINFO))
    assert len(found) == len(words), found
    for line, word in zip(found, words, strict=True):
        assert line.startswith(word)


def test_without_slurm_a_check_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["site", "check"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("site built-in, from no site file\n")
    assert "no sinfo here" in out


def test_the_nearest_site_file_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_site_files() == []
    user = tmp_path / "config" / "gnnhpc" / "site.yaml"
    user.parent.mkdir(parents=True)
    user.write_text("sites: {user: {}}")
    assert load_site()[0] == "user"
    Path("site.yaml").write_text("sites: {here: {}}")
    assert load_site()[0] == "here"
    (tmp_path / "other.yaml").write_text("sites: {other: {}}")
    monkeypatch.setenv("GNNHPC_SITE_FILE", "other.yaml")
    assert load_site()[0] == "other"
    (tmp_path / "flag.yaml").write_text("default: b\nsites: {a: {}, b: {time: 30}}")
    assert load_site("flag.yaml")[0] == "b"
    assert load_site("flag.yaml")[1].time_min == 30
    assert load_site("flag.yaml", "a")[0] == "a"


def test_an_unknown_site_is_told_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("sites: {a: {}, b: {}}")
    with pytest.raises(InputError) as caught:
        load_site(name="c")
    assert str(caught.value) == "--site: found 'c'; allowed: a, b"
