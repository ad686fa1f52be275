"""Site files over one another: the system's, the user's, the folder's, the named one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from jobs.slurm.site import Site, changed_site, check_site
from jobs.slurm.site_files import find_site_files, load_site


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """A file of each kind may be written; nothing of this machine's own is seen."""
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"{tmp_path}/near:{tmp_path}/far")
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}/home")
    monkeypatch.delenv("GNNHPC_SITE_FILE", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    found = {name: tmp_path / name / "gnnhpc" / "site.yaml" for name in ("far", "near", "home")} | {
        "here": Path("site.yaml"),
        "named": tmp_path / "named.yaml",
    }
    for path in found.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    return found


def test_a_later_file_overrides_key_by_key(places: dict[str, Path]) -> None:
    places["far"].write_text("sites: {big: {partition: far, qos: far, mem: 1G, account: far}}")
    places["near"].write_text("sites: {big: {partition: near, qos: near, mem: 2G}}")
    places["home"].write_text("sites: {big: {partition: home, qos: home}, own: {time: 5}}")
    places["here"].write_text("default: big\nsites: {big: {partition: here}}")
    assert find_site_files() == [places[name] for name in ("far", "near", "home", "here")]
    name, site = load_site()
    assert name == "big"
    assert (site.partition, site.qos, site.mem, site.account) == ("here", "home", "2G", "far")
    places["named"].write_text("sites: {big: {qos: null, modules: [gcc]}}")
    site = load_site(places["named"], "big")[1]
    assert (site.partition, site.qos, site.modules) == ("here", None, ("gcc",))
    assert load_site(name="own")[1].time_min == 5


def test_options_of_sbatch_are_overridden_one_by_one(places: dict[str, Path]) -> None:
    places["home"].write_text("sites: {a: {slurm: {nice: 1, mail-type: END}}}")
    places["here"].write_text("sites: {a: {slurm: {nice: 2, hold: true}}}")
    assert load_site()[1].slurm == {"nice": 2, "mail-type": "END", "hold": True}


def test_the_nearest_file_with_a_choice_chooses(places: dict[str, Path]) -> None:
    places["far"].write_text("default: x\nsites: {x: {}, y: {}}")
    assert load_site()[0] == "x"
    places["home"].write_text("sites: {y: {}, z: {}}")
    assert load_site()[0] == "x"
    places["here"].write_text("default: z\nsites: {y: {time: 7}}")
    assert load_site()[0] == "z"
    assert load_site(name="y")[1].time_min == 7


@pytest.mark.parametrize(
    ("home", "here", "words"),
    [
        ("sites: {a: {partion: x}}", "sites: {a: {}}", "{home}: sites.a.partion: found an unknown"),
        ("sites: {a: {}}", "sites: {a: {tim: 5}}", "site.yaml: sites.a.tim: found an unknown key"),
        (
            "sites: {a: {gres: 'gpu:1'}}",
            "sites: {a: {gpus_per_node: 1}}",
            "site.yaml: sites.a.gres: found both gres and gpus_per_node; allowed: one of them",
        ),
        (
            "sites: {a: {signal: 600}}",
            "sites: {a: {time: 10}}",
            "site.yaml: sites.a.time: found 10, and signal 600 s before its end; allowed: more",
        ),
        ("sites: {a: {time: 1}}", "sites: {b: {}}", None),
        ("sites: {a: {}}", "default: c\nsites: {a: {}}", "site.yaml: default: found 'c'; allowed"),
        ("sites: {a: {slurm: {x: [1]}}}", "sites: {a: {}}", "{home}: sites.a.slurm.x"),
    ],
)
def test_mistakes_name_their_file(
    home: str, here: str, words: str | None, places: dict[str, Path]
) -> None:
    places["home"].write_text(home)
    places["here"].write_text(here)
    if words is None:
        assert load_site()[0] == "b"
        return
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
        ({"hint": "nomultithread", "cpu_bind": "cores"}, "hint: found both hint and cpu_bind; a"),
        ({"slurm": {"array": "0-3"}}, "slurm.array: found array; allowed: other options of sbatch"),
        (
            {"slurm": {"partition": "x"}},
            "slurm.partition: found partition; allowed: the site's key",
        ),
        ({"slurm": {"tasks-per-node": 2}}, "slurm.tasks-per-node: found tasks-per-node; allowed: "),
    ],
)
def test_settings_that_no_job_could_have(settings: dict[str, object], words: str) -> None:
    with pytest.raises(InputError) as caught:
        check_site(changed_site(Site(), settings), "site")
    assert str(caught.value).startswith(f"site: {words}")


def test_a_minute_more_than_the_signal_is_enough() -> None:
    check_site(Site(time="2", signal=90), "site")


def test_flags_stand_in_place_of_single_settings() -> None:
    site = Site(time="2:00:00", slurm={"nice": 1, "hold": True})
    changed = changed_site(site, {"time": 30, "slurm": {"hold": False, "exclude": "n1"}})
    assert changed.time_min == 30
    assert changed.slurm == {"nice": 1, "hold": False, "exclude": "n1"}
    assert changed_site(site, {}) is site
