"""What the project's documents point to is there, and what they show can be submitted."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import yaml

import jobs
from jobs.slurm.site_files import load_site

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def documents() -> list[Path]:
    folders = ("gnnhpc", "jobs", "analysis", "benchmarks", "tests")
    return [*ROOT.glob("*.md"), *(each for name in folders for each in (ROOT / name).rglob("*.md"))]


def anchors(document: Path) -> set[str]:
    """As GitHub makes them."""
    headings = HEADING.findall(document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}


def test_links_lead_somewhere() -> None:
    found = 0
    for document in documents():
        for path, anchor in LINK.findall(document.read_text(encoding="utf-8")):
            target = document.parent / path if path else document
            assert target.exists(), f"{document}: {path}"
            assert not anchor or anchor in anchors(target), f"{document}: {path}#{anchor}"
            found += 1
    assert found


def blocks(document: Path) -> list[str]:
    """Indented ones, by blank lines around them."""
    text = document.read_text(encoding="utf-8")
    found = re.findall(r"(?:^    .*\n)+", text, re.MULTILINE)
    return [textwrap.dedent(each) for each in found]


def test_the_readmes_sweep_is_one() -> None:
    (text,) = [each for each in blocks(ROOT / "README.md") if each.startswith("name:")]
    planned = jobs.plan(yaml.safe_load(text), check=False)
    assert {str(cell.experiment.layout) for cell in planned.cells} == {"seq", "pp2", "dp2-pp2"}


@pytest.mark.parametrize("document", ["README.md", "jobs/README.md"])
def test_the_documents_site_is_one(document: str, tmp_path: Path) -> None:
    (text,) = [each for each in blocks(ROOT / document) if each.startswith("sites:")]
    path = tmp_path / "site.yaml"
    path.write_text(text)
    name, site = load_site(path)
    assert (name, site.cpus_per_task, site.modules) == ("my-cluster", 8, ("gcc/12",))
