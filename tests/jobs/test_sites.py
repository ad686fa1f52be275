"""Site files: how they override each other, how they fit a cluster, and how one is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from jobs.cli import main
from jobs.slurm.partitions import parse_sinfo
from jobs.slurm.site import Site, changed_site, check_site
from jobs.slurm.site_files import find_site_files, load_site
from jobs.slurm.site_init import site_file_text, write_site_file
from tests.jobs.fake_slurm import FakeSlurm

SINFO = """\
main*|up|1-00:00:00|4|16|64000|(null)|skylake,ib
gpu|up|infinite|2|32+|128000+|gpu:a100:4(S:0-1)|ib
old|down|1:00:00|1|4|8000|(null)|(null)
"""
ASSOCIATIONS = "proj42|normal,long\nother|normal\n"


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The path of each kind of site file, none of which exists."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"{tmp_path}/near:{tmp_path}/far")
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}/home")
    monkeypatch.delenv("GNNHPC_SITE_FILE", raising=False)
    found = {name: tmp_path / name / "gnnhpc" / "site.yaml" for name in ("far", "near", "home")}
    found |= {"here": Path("site.yaml"), "named": tmp_path / "named.yaml"}
    for path in found.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    return found


def test_a_later_file_overrides_key_by_key(places: dict[str, Path]) -> None:
    places["far"].write_text("sites: {big: {partition: far, qos: far, mem: 1G, account: far}}")
    places["near"].write_text("sites: {big: {partition: near, qos: near, mem: 2G}}")
    places["home"].write_text("sites: {big: {qos: home, slurm: {nice: 1, hold: true}}, b: {}}")
    places["here"].write_text("default: big\nsites: {big: {partition: here, slurm: {nice: 2}}}")
    assert find_site_files() == [places[name] for name in ("far", "near", "home", "here")]
    name, site = load_site()
    assert name == "big"
    assert (site.partition, site.qos, site.mem, site.account) == ("here", "home", "2G", "far")
    assert site.slurm == {"nice": 2, "hold": True}
    places["named"].write_text("sites: {big: {qos: null, modules: [gcc]}, own: {time: 5}}")
    site = load_site(places["named"], "big")[1]
    assert (site.partition, site.qos, site.modules) == ("here", None, ("gcc",))
    assert load_site(places["named"], "own")[1].time_min == 5


def test_the_nearest_file_with_a_choice_chooses(places: dict[str, Path]) -> None:
    places["far"].write_text("default: x\nsites: {x: {}, y: {}}")
    places["home"].write_text("sites: {y: {}, z: {}}")
    assert load_site()[0] == "x"
    places["here"].write_text("default: z\nsites: {y: {time: 7}}")
    assert load_site()[0] == "z"
    with pytest.raises(InputError, match="--site: found 'c'; allowed: x, y, z"):
        load_site(name="c")


@pytest.mark.parametrize(
    ("home", "here", "words"),
    [
        ("sites: {a: {partion: x}}", "sites: {a: {}}", "{home}: sites.a.partion: found an unknown"),
        (
            "sites: {a: {gres: x}}",
            "sites: {a: {gpus_per_node: 1}}",
            "site.yaml: sites.a.gres: foun",
        ),
        (
            "sites: {a: {signal: 600}}",
            "sites: {a: {time: 10}}",
            "site.yaml: sites.a.time: found 10,",
        ),
        ("sites: {a: {}}", "default: c\nsites: {a: {}}", "site.yaml: default: found 'c'; allowed"),
    ],
)
def test_mistakes_name_their_file(
    home: str, here: str, words: str, places: dict[str, Path]
) -> None:
    places["home"].write_text(home)
    places["here"].write_text(here)
    with pytest.raises(InputError) as caught:
        load_site()
    assert str(caught.value).startswith(words.format(home=places["home"])), caught.value


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"time": "1", "signal": 60},
            "time: found 1, and signal 60 s before its end; allowed: more",
        ),
        (
            {"slurm": {"hint": "x"}, "cpu_bind": "cores"},
            "cpu_bind: found both cpu_bind and a hint; a",
        ),
        ({"slurm": {"array": "0-3"}}, "slurm.array: found array; allowed: other options of sbatch"),
        (
            {"slurm": {"partition": "x"}},
            "slurm.partition: found partition; allowed: the site's key",
        ),
    ],
)
def test_settings_that_no_job_could_have(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        check_site(changed_site(Site(), settings), "site")
    assert str(caught.value).startswith(f"site: {words}")


def test_flags_replace_single_settings() -> None:
    site = Site(time="2:00:00", slurm={"nice": 1, "hold": True})
    changed = changed_site(site, {"time": 30, "slurm": {"hold": False, "exclude": "n1"}})
    assert changed.time_min == 30
    assert changed.slurm == {"nice": 1, "hold": False, "exclude": "n1"}


@pytest.mark.parametrize(
    ("site", "fault", "words"),
    [
        ("{partition: gpu, time: 9-0}", "none:", "fits; next: "),
        ("{time: 2-0}", "none:", "does not fit: time: found 2-0; allowed: at most 1440 minutes\n"),
        ("{partition: x}", "fail:Invalid partition", "does not fit: Invalid partition\n"),
    ],
)
def test_slurm_says_whether_a_site_fits(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str], site: str, fault: str, words: str
) -> None:
    Path("site.yaml").write_text(f"sites: {{x: {site}}}")
    slurm.offer(SINFO.strip())
    slurm.next_calls(fault)
    status = main(["site", "check"])
    out = capsys.readouterr().out
    assert words in out
    assert status == (0 if "fits; next" in out else 1)
    assert "--test-only" in slurm.calls[-1]


def test_a_made_site_file_is_sound_by_default() -> None:
    text = site_file_text("big", parse_sinfo(SINFO), ASSOCIATIONS)
    write_site_file(Path("site.yaml"), text)
    name, site = load_site()
    assert name == "big"
    assert site.settings() == {
        "partition": "main",
        "cpus_per_task": 1,
        "time": "01:00:00",
        "exclusive": True,
        "max_parallel": 4,
    }
    assert "#   main (default): 4 nodes, 16 CPUs, 64000 MiB, 1440 min\n" in text
    assert "    # Accounts: proj42, other\n    # account: " in text
    with pytest.raises(InputError, match=r"site\.yaml: found a file that is there; allowed: anoth"):
        write_site_file(Path("site.yaml"), "x")


@pytest.mark.parametrize(("limit", "time"), [("30:00", "00:05:00"), ("2:00", "00:02:00")])
def test_a_block_fits_the_partition_with_the_time_that_is_written(limit: str, time: str) -> None:
    sinfo = SINFO.replace("1-00:00:00", limit)
    Path("site.yaml").write_text(site_file_text("big", parse_sinfo(sinfo), "one|"))
    assert load_site()[1].time == time


@pytest.mark.parametrize("text", ["^lo", "=ib0", "ib0,^lo", "ib0,", ""])
def test_an_interface_that_gloo_does_not_take_is_refused_at_submit(text: str) -> None:
    """NCCL's forms: `^lo` is every interface but lo, which gloo would take for a name."""
    with pytest.raises(InputError, match=r"interface: found .*; allowed: the name of an interface"):
        changed_site(Site(), {"interface": text})
    assert changed_site(Site(), {"interface": "ib0,eth1"}).interface == "ib0,eth1"
