"""Site files: which one is used, how its sites fit a cluster, and how one is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from jobs.slurm.partitions import parse_sinfo, site_file_text, write_site_file
from jobs.slurm.read_site_file import load_site
from jobs.slurm.site_settings import Site, changed_site, time_limit_minutes

SINFO = """\
main*|up|1-00:00:00|4|16|64000|(null)|skylake,ib
gpu|up|infinite|2|32+|128000+|gpu:a100:4(S:0-1)|ib
old|down|1:00:00|1|4|8000|(null)|(null)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder without a site file of this user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_DIRS", f"{tmp_path}/system")
    monkeypatch.setenv("XDG_CONFIG_HOME", f"{tmp_path}/home")
    monkeypatch.delenv("GNNHPC_SITE_FILE", raising=False)


def test_the_nearest_site_file_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_site() == ("built-in", Site())
    places = {
        "systems": Path("system/gnnhpc/site.yaml"),
        "users": Path("home/gnnhpc/site.yaml"),
        "folder": Path("site.yaml"),
    }
    places |= {"variable": Path("variable.yaml"), "named": Path("named.yaml")}
    for name, path in places.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"default: {name}\nsites: {{{name}: {{time: 5}}, other: {{}}}}")
        if name == "variable":
            monkeypatch.setenv("GNNHPC_SITE_FILE", str(path))
        chosen, site = load_site(path if name == "named" else None)
        assert (chosen, site.time_min) == (name, 5)
    assert load_site(name="other") == ("other", Site())
    with pytest.raises(InputError, match="--site: found 'c'; allowed: other, variable"):
        load_site(name="c")


def test_time_limits_are_read_as_slurm_reads_them_and_flags_replace_single_settings() -> None:
    texts = {"90": 90, "30:01": 31, "2:00:00": 120, "1-12": 2160, "1-02:30": 1590}
    assert {text: time_limit_minutes(text) for text in texts} == texts
    site = Site(time="2:00:00", slurm={"nice": 1, "hold": True})
    changed = changed_site(site, {"time": 30, "slurm": {"hold": False, "exclude": "n1"}})
    assert changed.time_min == 30
    assert changed.slurm == {"nice": 1, "hold": False, "exclude": "n1"}


@pytest.mark.parametrize(
    ("limit", "time"), [("1-00:00:00", "01:00:00"), ("30:00", "00:05:00"), ("2:00", "00:02:00")]
)
def test_a_made_site_file_fits_the_partition(limit: str, time: str) -> None:
    """A paired block has the time of all its cells, so that a short partition gets a short one."""
    partitions = parse_sinfo(SINFO.replace("1-00:00:00", limit))
    text = site_file_text("big", partitions, ["proj42", "other", "proj42"])
    write_site_file(Path("site.yaml"), text)
    assert f"    #   main* (up): 4 nodes, 16 CPUs, 64000 MiB, time limit {limit}" in text
    assert "    # Accounts: proj42, other\n    # account: " in text
    name, site = load_site()
    assert (name, site.partition, site.time, site.exclusive) == ("big", "main", time, True)
    with pytest.raises(InputError, match=r"site\.yaml: found File exists; allowed: another --out"):
        write_site_file(Path("site.yaml"), "x")
