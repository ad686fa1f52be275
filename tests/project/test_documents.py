"""What the project's documents point to is there, and what they show can be submitted."""

from __future__ import annotations

import re
import runpy
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnnhpc.console import COMMANDS, load
from jobs.slurm.read_site_file import load_site
from jobs.sweep.plan import plan

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


def test_the_sweep_and_the_sites_of_the_documents_can_be_read(tmp_path: Path) -> None:
    (text,) = [each for each in blocks(ROOT / "README.md") if each.startswith("name:")]
    planned = plan(yaml.safe_load(text), check=False)
    assert {str(cell.experiment.layout) for cell in planned.cells} == {"seq", "pp2", "dp2-pp2"}
    for document in ("README.md", "jobs/README.md"):
        (text,) = [each for each in blocks(ROOT / document) if each.startswith("sites:")]
        path = tmp_path / "site.yaml"
        path.write_text(text)
        name, site = load_site(path)
        assert (name, site.cpus_per_task, site.modules) == ("my-cluster", 8, ("gcc/12",))


PAGES: dict[str, str] = runpy.run_path(str(ROOT / "docs/reference_pages.py"))["pages"]()
"""The pages that the documentation makes from docstrings."""


def test_the_pages_of_the_documentation_link_to_one_another() -> None:
    folder = ROOT / "docs"
    written = {each.relative_to(folder).as_posix(): each for each in folder.rglob("*.md")}
    known = {*written, *PAGES}
    for name, path in written.items():
        for target, _ in LINK.findall(path.read_text(encoding="utf-8")):
            if target:
                place = (path.parent / target).resolve()
                in_site = place.is_relative_to(folder) and str(place.relative_to(folder)) in known
                assert in_site or place.is_file(), f"{name}: {target}"
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"[\w/-]+\.md", site)) == known


def test_generated_pages_name_every_field() -> None:
    for name, keys in {
        "reference/sweep.md": ("layouts", "fanouts", "lr"),
        "reference/site.md": ("partition", "max_requeues"),
        "reference/summary-csv.md": ("speedup_low", "flags"),
        "reference/run-folder.md": ("resumed_from", "wall_s", "verdict"),
        "reference/commands.md": ("--paired", "gnnhpc data check"),
    }.items():
        assert all(f"`{key}`" in PAGES[name] or key in PAGES[name] for key in keys), name


COMMAND = re.compile(
    r"^(?: *|.*`)((?:gnnhpc|python -m (?:jobs|gnnhpc|analysis)) [a-z].*?)(?:`|$)", re.M
)


@pytest.mark.parametrize(
    "document", sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/*/*.md"), *ROOT.glob("*/README.md")}),
    ids=lambda path: str(path.relative_to(ROOT)),
)  # fmt: skip
def test_commands_in_documents_have_these_options(document: Path) -> None:
    for line in COMMAND.findall(document.read_text(encoding="utf-8")):
        words = shlex.split(line.removeprefix("python -m ").partition("#")[0])
        command: Any = load(words[1]) if words[1] in COMMANDS else None
        if command is None:
            continue
        for word in words[2:]:
            command = getattr(command, "commands", {}).get(word, command)
        allowed = {each for option in command.params for each in option.opts}
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= {*allowed, "--help"}, f"{line}: {sorted(used - allowed)}"
