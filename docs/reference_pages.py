"""Pages that are generated from the code, and links to READMEs: mkdocs calls this file.

Settings, records and results are documented by the docstrings of their fields, commands by their
help texts, and packages by their README pages.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
READMES = {
    "jobs": "jobs",
    "models": "gnnhpc/models",
    "engines": "gnnhpc/engines",
    "batches": "gnnhpc/batches",
    "validation": "gnnhpc/validation",
    "analysis": "analysis",
    "benchmarks": "benchmarks",
}
"""Page below `packages/` -> folder of its README.md."""


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to those of the folder."""
    from mkdocs.structure.files import File

    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to READMEs, which serve in a checkout, to their pages in the site."""
    for name, folder in READMES.items():
        markdown = markdown.replace(f"](../../{folder}/README.md", f"](../packages/{name}.md")
    return markdown


def pages() -> dict[str, str]:
    """Path in the site -> Markdown."""
    return {
        "reference/sweep.md": _sweep(),
        "reference/site.md": _site(),
        "reference/models-and-data.md": _models_and_data(),
        "reference/commands.md": _commands(),
        "reference/summary-csv.md": _summary(),
        "reference/run-folder.md": _run_folder(),
        "how-to/extend.md": _extend(),
        **{f"packages/{name}.md": _readme(folder) for name, folder in READMES.items()},
    }


def _sweep() -> str:
    from jobs.sweep.settings_table import sweep_rows

    text = [
        "# Sweeps",
        "A sweep is a YAML file with `defaults` and `grids`. `gnnhpc schema sweep --table` prints "
        "these tables in a terminal, and `gnnhpc schema sweep` the JSON Schema for editors.",
    ]
    for title, rows in sweep_rows():
        text += [f"## {title}", _settings(rows)]
    return _page(text)


def _site() -> str:
    from jobs.slurm.site import Site
    from jobs.sweep.settings_table import setting_rows

    text = [
        "# Site files",
        "A site file has the key `sites`, with one entry a cluster, and `default`, the name of the "
        "one to use. [Write a site file](../how-to/site-file.md) shows one.",
        _settings(list(setting_rows(Site))),
    ]
    return _page(text)


def _models_and_data() -> str:
    from gnnhpc.data.registry import DATA
    from gnnhpc.models.model_registry import BUILT_IN, model_class

    models = [(name, model_class(name)) for name in sorted(BUILT_IN)]
    text = ["# Models and data", "## Models"]
    text += [_named_settings(name, cls) for name, cls in models if cls is not None]
    by_class: dict[type[Any], list[str]] = {}
    for name, cls in sorted(DATA.items()):
        by_class.setdefault(cls, []).append(name)
    text += ["## Data", "`gnnhpc data list` says which of them are on this machine."]
    for cls, names in by_class.items():
        text.append(_named_settings(", ".join(names), cls))
    return _page(text)


def _named_settings(name: str, cls: type[Any]) -> str:
    from jobs.sweep.settings_table import setting_rows

    about = inspect.getdoc(cls) or ""
    rows = [row for row in setting_rows(cls) if row.key != "name"]
    return _page([f"### {name}", about, _settings(rows) if rows else ""]).rstrip()


def _settings(rows: list[Any]) -> str:
    """A table of settings; meanings stand last, as they are the longest."""
    body = [(f"`{row.key}`", row.kind, f"`{row.default}`", row.meaning) for row in rows]
    return _table(("key", "value", "default", "meaning"), body)


def _commands() -> str:
    from gnnhpc.console import COMMANDS, load

    text = ["# Commands", "`gnnhpc COMMAND --help` prints the same in a terminal."]
    for name in COMMANDS:
        text += list(_command(f"gnnhpc {name}", load(name), level=2))
    return _page(text)


def _command(name: str, command: Any, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}"
    yield inspect.cleandoc(command.help or "")
    if command.epilog:
        yield " ".join(command.epilog.split())
    rows = []
    for each in command.params:
        if "--help" in each.opts:
            continue
        spelling = ", ".join(each.opts) if each.param_type_name == "option" else each.name.upper()
        rows.append((f"`{spelling}`", " ".join((getattr(each, "help", None) or "").split())))
    if rows:
        yield _table(("option", "meaning"), rows)
    for inner, each in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {inner}", each, level + 1)


def _summary() -> str:
    from analysis.summary.summary_columns import COLUMN_MEANINGS

    text = [
        "# summary.csv",
        "One row a model, data, layout, micro-batches, other settings that vary, and phase. The "
        "columns below come first, in this order. Settings in which cells differ follow, then "
        "losses and metrics. An empty value is one that was not measured.",
        _table(("column", "meaning"), [(f"`{k}`", v) for k, v in COLUMN_MEANINGS.items()]),
    ]
    return _page(text)


def _run_folder() -> str:
    from gnnhpc.records import result_file, schema

    text = [
        "# Run folder",
        "```\n"
        "RUN/ sweep.yaml  manifest.jsonl  provenance.json  arrays/<model>-<layout>.sbatch\n"
        "     code/  cells/<cell id>/attempt-<n>/{rank-0000.jsonl, result.json, logs}\n"
        "     report/ {summary.csv, steps.parquet, tables/, figures/, report.md, report.html}\n"
        "```",
        "`manifest.jsonl` has one cell a line and is never rewritten. `code/` is what the run was "
        "planned with. Every try at a cell is a new attempt.",
        "## result.json",
        _dataclass(result_file.Result),
    ]
    for title, cls in (
        ("Checks", schema.Check),
        ("Failure", schema.Failure),
        ("Records: header", schema.Header),
        ("Records: steps", schema.StepRecord),
        ("Records: spans", schema.SpanRecord),
        ("Records: events", schema.EventRecord),
    ):
        text += [f"## {title}", _dataclass(cls)]
    return _page(text)


def _dataclass(cls: type[Any]) -> str:
    meanings = field_docstrings(cls)
    rows = [
        (f"`{each.name}`", f"`{each.type}`", meanings.get(each.name, ""))
        for each in dataclasses.fields(cls)
    ]
    return _page([inspect.getdoc(cls) or "", _table(("field", "type", "meaning"), rows)]).rstrip()


def field_docstrings(cls: type[Any]) -> Mapping[str, str]:
    """Field -> the string that follows it in the source of a dataclass."""
    (definition,) = ast.parse(inspect.cleandoc(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    found, name = {}, None
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and name:
            found[name] = " ".join(str(node.value.value).split())
            name = None
        else:
            name = None
    return found


def _extend() -> str:
    """The section of CONTRIBUTING.md that says where to add what."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("## To add\n")
    return f"# Extend gnnhpc\n{rest.partition(chr(10) + '## ')[0]}"


def _readme(folder: str) -> str:
    """A README with links that lead to pages of the site, or show the path of a file."""
    text = (ROOT / folder / "README.md").read_text(encoding="utf-8")

    def link(match: re.Match[str]) -> str:
        label, path, anchor = match[1], match[2], match[3] or ""
        target = (ROOT / folder / path).resolve()
        for name, other in READMES.items():
            if target == ROOT / other / "README.md":
                return f"[{label}]({name}.md{anchor})"
        if target == ROOT / "README.md":
            return f"[{label}](../index.md)"
        return f"{label} (`{target.relative_to(ROOT)}`)"

    return re.sub(r"\[([^\]]*)\]\((?!https?:|#)([^)#]*)(#[^)]*)?\)", link, text)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    escaped = ([cell.replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in escaped)


def _page(blocks: list[str]) -> str:
    return "\n\n".join(block for block in blocks if block) + "\n"
