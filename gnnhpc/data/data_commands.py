"""The commands of `gnnhpc data`: list and get data sets, and the files that `check` looks at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.data.data_files import (
    CHECKSUMS,
    changed_files,
    data_root,
    default_roots,
    record_checksums,
)
from gnnhpc.data.data_settings import Data
from gnnhpc.data.registry import DATA, allowed_data

app = typer.Typer(
    no_args_is_help=True,
    help="List, download and check data sets.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
Root = Annotated[
    str | None,
    typer.Option(
        "--data-root",
        help="Folder of the data sets; default $GNNHPC_DATA, then ./data, then "
        "~/.cache/gnnhpc/data.",
    ),
]
Names = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...", help="Names of `gnnhpc data list`; to check also .npz files."
    ),
]


@app.command("list")
def list_(root: Root = None) -> int:
    """List every data set: its name, kind, sizes, and where it is."""
    for line in listing(data_root(root)):
        print(line)
    return 0


@app.command(epilog="Example: gnnhpc data get cifar10 cora --data-root /scratch/data")
def get(names: Names, root: Root = None) -> int:
    """Download data sets. Existing files stay; a download that fails adds nothing."""
    from gnnhpc.data.download import get_data

    for data in [named_data(name) for name in names]:
        print(get_data(data, data_root(root) or default_roots()[-1]))
    return 0


def named_data(name: str) -> Data:
    """The data set of this name, or the custom graph in the .npz file of this path.

    Raises InputError for any other name.
    """
    if name.endswith(".npz"):
        return CustomGraph(path=name).planned(Path.cwd())
    if name not in DATA or DATA[name] is CustomGraph:
        raise InputError("data", None, repr(name), f"{allowed_data()}, or the path of an .npz file")
    return DATA[name].model_validate({"name": name})


def listing(root: Path | None) -> Iterator[str]:
    """A line for each data set, in columns."""
    rows = [("name", "kind", "sizes", f"where (data root {root or 'none'})")]
    rows += [_row(name, root) for name in DATA]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=False))
        yield "  ".join((*cells, row[3]))


def _row(name: str, root: Path | None) -> tuple[str, str, str, str]:
    if DATA[name] is CustomGraph:
        return name, "graph", "those of the file", "data: {name: file, path: graph.npz}"
    data = named_data(name)
    facts = data.facts()
    return name, facts.kind, _sizes(facts), _where(data, root)


def _sizes(facts: Facts) -> str:
    if facts.kind == "images":
        size = facts.image_size
        return f"{facts.train:,} + {facts.test:,} of {size} x {size}, {facts.classes} classes"
    graphs = f"{facts.graphs:,} graphs, " if facts.kind == "graphs" else ""
    return (
        f"{graphs}{facts.nodes:,} nodes, {facts.edges:,} edges, {facts.features:,} features, "
        f"{facts.classes} classes"
    )


def _where(data: Data, root: Path | None) -> str:
    files = data.files()
    if files is None:
        return "synthetic"
    missing = files.missing(root)
    if root is None or len(missing) == len(files.names):
        return "not here"
    lacks = f", without {len(missing)} of {len(files.names)} files" if missing else ""
    return f"{files.directory(root)}{lacks}"


def find_fault(data: Data, root: Path | None) -> str | None:
    """What is wrong with the files of a data set: some are missing, or not those recorded."""
    files = data.files()
    if files is None:
        return None
    missing = files.missing(root)
    if root is None or missing:
        return f"without {', '.join(missing)}; {files.how_to_get(data.name)}"
    folder = files.directory(root)
    changed = ", ".join(changed_files(folder))
    return f"damaged: {changed} in {folder} differs from {CHECKSUMS} beside it" if changed else None


def record_files(data: Data, root: Path | None) -> str:
    """Write the digests of a data set's whole files beside them, where `get` has not done so."""
    files = data.files()
    if files is None or root is None:
        return ""
    record = files.directory(root) / CHECKSUMS
    try:
        new = record_checksums(record.parent, files.names)
    except OSError as error:
        return f"; {record} cannot be written ({error.strerror})"
    return f"; {new} digests are now in {record}" if new else f"; files as recorded in {CHECKSUMS}"
