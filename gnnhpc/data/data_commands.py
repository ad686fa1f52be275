"""The commands of `gnnhpc data`: list, get and record data sets, and what `check` reports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from gnnhpc.core.dataset_sizes import Facts
from gnnhpc.core.errors import InputError
from gnnhpc.core.settings import input_error
from gnnhpc.data.custom_graph_settings import CustomGraph
from gnnhpc.data.data_files import (
    CHECKSUMS,
    changed_files,
    data_root,
    existing_root,
    read_checksums,
    root_to_fill,
    sha256,
    write_checksums,
)
from gnnhpc.data.data_settings import Data
from gnnhpc.data.registry import DATA, allowed_data, data_class

app = typer.Typer(
    no_args_is_help=True,
    help="List, download, record and check data sets.",
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
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of `gnnhpc data list`.")]
NamesOrFiles = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Names, or .npz files with custom graphs."),
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

    found = [named_data(name) for name in names]
    for data in found:
        print("\n".join(get_data(data, root_to_fill(root))))
    return 0


@app.command(epilog="Example: gnnhpc data record cora --data-root /scratch/data")
def record(names: Names, root: Root = None) -> int:
    """Record the SHA-256 of the files of data sets that were copied by hand.

    Downloads are recorded by `get`. `gnnhpc check` compares the files of a run with the record.
    """
    for name in names:
        if name.endswith(".npz"):
            needs = "a published data set; a run records the digest of a custom graph itself"
            raise InputError("data", None, repr(name), needs)
        print(record_data(named_data(name), data_root(root)))
    return 0


def named_data(name: str, *, custom: bool = False) -> Data:
    """The data set of this name; with `custom`, a path that ends in .npz is a custom graph.

    Raises InputError for any other name.
    """
    if custom and name.endswith(".npz"):
        return CustomGraph(path=name).planned(Path.cwd())
    found = data_class(name)
    if found is None:
        allowed = allowed_data() + (", or the path of an .npz file" if custom else "")
        raise InputError("data", None, repr(name), allowed)
    if found is CustomGraph:
        if custom:
            raise InputError("data", None, repr(name), "the path of its .npz file")
        found_text = f"{name!r}, which has no files in a data root"
        raise InputError("data", None, found_text, "a data set with published files")
    try:
        return found.model_validate({"name": name})
    except ValidationError as error:
        raise input_error(error, "data") from None


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
    files = data.files(root)
    if files is None:
        return "synthetic"
    missing = files.names if root is None else files.missing(root)
    if root is None or len(missing) == len(files.names):
        return "not here"
    folder = files.directory(root)
    if missing:
        return f"{folder}, without {len(missing)} of {len(files.names)} files"
    return str(folder)


def record_data(data: Data, root: Path | None) -> str:
    """Write the digests of a data set's files beside them; returns a line that says so.

    Raises InputError for data without files, for missing files, and for files that differ from an
    earlier record.
    """
    files = data.files(root)
    if files is None:
        found = "no files: it is made from its settings"
        raise InputError(f"data {data.name}", None, found, "a data set with published files")
    root = existing_root(data.name, root)
    folder, missing = files.directory(root), files.missing(root)
    present = [name for name in files.names if name not in missing]
    if not present:
        raise InputError(folder, None, "no such files", f"`gnnhpc data get {data.name}`")
    if changed := changed_files(folder):
        found = f"{', '.join(changed)}, which differs from the record"
        allowed = f"the recorded files, or no {CHECKSUMS}, to record these"
        raise InputError(folder, None, found, allowed)
    sums = {name: sha256(folder / name) for name in present}
    try:
        write_checksums(folder, read_checksums(folder) | sums)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(folder, None, reason, "a folder that may be written") from None
    lacking = f"; {', '.join(missing)} are missing" if missing else ""
    return f"{data.name}: {len(sums)} digests written to {folder / CHECKSUMS}{lacking}"


def check_data_set(data: Data, root: Path | None) -> tuple[bool, str]:
    """Whether the files of a data set exist, are as recorded, and have the published sizes.

    Returns the answer and a line that explains it. Graphs and images are read as a run reads them.
    """
    files = data.files(root)
    recorded = ""
    if files is not None:
        missing = files.names if root is None else files.missing(root)
        if root is None or len(missing) == len(files.names):
            return False, f"not here; `gnnhpc data get {data.name}` gets it"
        folder = files.directory(root)
        if missing:
            here = f"{len(files.names) - len(missing)} of {len(files.names)} files in {folder}"
            rest = f"without {', '.join(missing)}; `gnnhpc data get {data.name}` gets the rest"
            return False, f"a part: {here}, {rest}"
        if changed := changed_files(folder):
            differ = f"{', '.join(changed)} in {folder} differs from {CHECKSUMS} beside it"
            return False, f"damaged: {differ}"
        recorded = f"; no record of its digests: `gnnhpc data record {data.name}` writes one"
        if read_checksums(folder).keys() >= set(files.names):
            recorded = f"; files as recorded in {CHECKSUMS}"
    facts = data.facts()
    try:
        found = _image_counts(data, root) if facts.kind == "images" else _graph_sizes(data, root)
    except InputError as error:
        return False, f"damaged: {error}"
    wrong = [
        f"{count:,} {key}, not {getattr(facts, key):,}"
        for key, count in found.items()
        # Self-loops and duplicates, which are left out, count among published edges.
        if key != "edges" and count != getattr(facts, key)
    ]
    if wrong:
        return False, f"of another size: {', '.join(wrong)}"
    return True, f"whole: {', '.join(f'{count:,} {key}' for key, count in found.items())}{recorded}"


def _image_counts(data: Data, root: Path | None) -> dict[str, int]:
    from gnnhpc.data.images import load_images

    return {split: len(load_images(data, root, split)) for split in ("train", "test")}


def _graph_sizes(data: Data, root: Path | None) -> dict[str, int]:
    from gnnhpc.data.load_graph import load_graph, load_graph_set

    if data.facts().kind == "graphs":
        graphs = load_graph_set(data, root)
        found, features, edges = {"graphs": len(graphs)}, graphs.features, graphs.edges
    else:
        graph = load_graph(data, root)
        found, features, edges = {}, graph.features, graph.edges
    nodes, columns = features.shape
    return found | {"nodes": nodes, "edges": edges.shape[1], "features": columns}
