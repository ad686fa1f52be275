"""The commands of `gnnhpc data`: what data sets there are, getting and checking them."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    help="List, download and check data sets, on a machine that has a network.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Root = Annotated[
    str | None,
    typer.Option(
        "--data-root",
        help="Folder of the data sets; else $GNNHPC_DATA, ./data, ~/.cache/gnnhpc/data.",
    ),
]
Names = Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of `gnnhpc data list`.")]
NamesOrFiles = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Names, or .npz files with graphs of your own."),
]


@app.command("list")
def list_(data_root: Root = None) -> int:
    """Every data set: its name, kind, sizes, and where it lies."""
    from gnnhpc.data import roots
    from gnnhpc.data.commands.show import listing

    root = roots.data_root(data_root)
    for line in listing(root):
        print(line)
    return 0


@app.command(epilog="Example: gnnhpc data get cifar10 cora --data-root /scratch/data")
def get(names: Names, data_root: Root = None) -> int:
    """Download data sets; what is here already stays, and a failure leaves nothing half done."""
    from gnnhpc.data import roots
    from gnnhpc.data.commands.get import get_data
    from gnnhpc.data.commands.show import named_data, showing

    wanted = [named_data(name) for name in names]
    root = roots.root_to_fill(data_root)
    for data in wanted:
        with showing() as starting:
            lines = get_data(data, root, starting)
        print("\n".join(lines))
    return 0
