"""A site file from what a cluster says: it is read back, and overwrites nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from gnnhpc.core.errors import InputError
from jobs.slurm.site import Site
from jobs.slurm.site_check import parse_sinfo
from jobs.slurm.site_files import load_site
from jobs.slurm.site_init import (
    Offer,
    parse_associations,
    site_file_text,
    write_site_file,
)
from tests.jobs.test_site_check import SINFO

OFFER = Offer(
    "big",
    tuple(parse_sinfo(SINFO)),
    *parse_associations("proj42|normal,long\nother|normal\n"),
    1001,
)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GNNHPC_SITE_FILE", raising=False)


def test_what_is_written_is_a_site_file() -> None:
    text = site_file_text(OFFER)
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
    assert "#   old (down): 1 nodes, 4 CPUs, 8000 MiB, 60 min\n" in text
    assert "# Accounts: proj42, other\n" in text


def test_every_commented_setting_is_one_that_may_be_set() -> None:
    text = site_file_text(replace(OFFER, accounts=(), qos=()))
    keys = "|".join(Site.model_fields)
    text = re.sub(rf"^    # ({keys}): ", r"    \1: ", text, flags=re.MULTILINE)
    Path("all.yaml").write_text(text.replace("exclusive: true", "exclusive: user"))
    site = load_site("all.yaml")[1]
    assert site.account == "NAME"
    assert site.exclusive == "user"
    assert (site.constraint, site.max_array_size) == ("skylake", 1001)


def test_the_one_account_of_a_user_is_taken() -> None:
    text = site_file_text(replace(OFFER, accounts=("proj42",)))
    assert "\n    account: proj42\n" in text


def test_names_that_yaml_would_read_otherwise_are_quoted() -> None:
    Path("site.yaml").write_text(site_file_text(replace(OFFER, cluster="1e3", accounts=("null",))))
    name, site = load_site()
    assert (name, site.account) == ("1e3", "null")


def test_a_file_that_is_there_stays() -> None:
    Path("site.yaml").write_text("sites: {mine: {}}")
    with pytest.raises(InputError, match=r"site\.yaml: found a file that is there; allowed: anoth"):
        write_site_file(Path("site.yaml"), "x")
    assert Path("site.yaml").read_text() == "sites: {mine: {}}"
