"""The commands of `python -m gnnhpc`; torch is imported only to run something."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.cli_options import make_app, run_app
from gnnhpc.core.errors import InputError
from gnnhpc.data.data_commands import Names, Root
from gnnhpc.data.data_commands import app as data_app

app = make_app("Run one experiment, or verify that it computes what one process computes.")
app.add_typer(data_app, name="data")

Model = Annotated[
    str | None,
    typer.Option(
        help="a built-in model, such as vig or gat, or a custom one as module:Class; settings with "
        "--set model.blocks=4"
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="a name of `gnnhpc data list`; settings with --set data.nodes=500; default: synthetic "
        "data of the kind that the model takes"
    ),
]
LayoutName = Annotated[str, typer.Option(help="seq, pp<S>, dp<R> or dp<R>-pp<S>")]
Microbatches = Annotated[int, typer.Option(help="micro-batches a mini-batch and replica")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="any field of an experiment, such as train_steps=20 or model.implementation=pyg",
    ),
]
DataRoot = Annotated[
    str | None,
    typer.Option(
        help="folder of the data sets; default $GNNHPC_DATA, then ./data, then ~/.cache/gnnhpc/data"
    ),
]
Live = Annotated[
    bool,
    typer.Option("--live", help="Run the current checkout instead of the copy in the run folder."),
]
CellFile = Annotated[
    Path | None, typer.Option("--cell", help="a file holding one line of a manifest")
]


@app.command(
    epilog="Under srun or torchrun each process is one rank; alone it must be seq. "
    "Example: torchrun --nproc-per-node 2 -m gnnhpc run --model vig --layout pp2 "
    "--microbatches 5 --set batch_size=100"
)
def run(
    manifest: Annotated[Path | None, typer.Option(help="RUN/manifest.jsonl")] = None,
    array: Annotated[str | None, typer.Option(help="which array, such as vig-pp2")] = None,
    index: Annotated[int | None, typer.Option(help="which cell, $SLURM_ARRAY_TASK_ID")] = None,
    cell: CellFile = None,
    model: Model = None,
    data: Data = None,
    layout: LayoutName = "seq",
    microbatches: Microbatches = 1,
    settings: Settings = None,
    data_root: DataRoot = None,
    out: Annotated[
        Path, typer.Option(help="run folder for --cell and --model; attempts are numbered")
    ] = Path("runs/by-hand"),
    live: Live = False,
) -> int:
    """Run one cell, one rank a process: from a manifest, from a file, or from flags.

    Ranks that a signal stopped after they saved a checkpoint end with status 3.
    """
    keep_numpy_to_one_thread()
    from gnnhpc.core.run_paths import RunPaths
    from gnnhpc.experiment.command_line_flags import cell_from_flags, read_cell
    from gnnhpc.worker.attempt import Attempt
    from gnnhpc.worker.run_cell import run_attempt, run_cell

    if manifest is not None:
        if array is None or index is None:
            raise InputError("--manifest", None, "alone", "--array and --index with it")
        return run_cell(manifest, array, index, live=live)
    if cell is not None:
        return run_attempt(Attempt(read_cell(cell, data_root)), RunPaths(out))
    if model is None:
        raise InputError("run", None, "nothing to run", "--manifest, --cell or --model")
    chosen = cell_from_flags(model, data, layout, microbatches, settings or [], data_root)
    return run_attempt(Attempt(chosen), RunPaths(out))


@app.command(
    epilog="Exit status 1 unless everything agrees to 1e-9. Under srun or torchrun with as many "
    "tasks as the layout has ranks it runs in place; otherwise it starts the ranks here. "
    "Example: gnnhpc verify --model gat --layout dp2-pp2 --microbatches 3"
)
def verify(
    model: Model = None,
    data: Data = None,
    layout: LayoutName = "pp2",
    microbatches: Microbatches = 4,
    settings: Settings = None,
    cell: CellFile = None,
    manifest: Annotated[
        Path | None, typer.Option("--all", help="verify each distinct cell of this manifest")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="training steps that are compared")] = 3,
    data_root: DataRoot = None,
) -> int:
    """Compare a few steps of all ranks, in float64, with the same steps in one process."""
    keep_numpy_to_one_thread()
    from gnnhpc.experiment.command_line_flags import cell_from_flags, read_cell
    from gnnhpc.validation.verify import verify_cells, verify_manifest

    if manifest is not None:
        return verify_manifest(manifest, steps)
    if cell is not None:
        return verify_cells([read_cell(cell, data_root)], steps)
    if model is None:
        raise InputError("verify", None, "nothing to verify", "--model, --cell or --all")
    chosen = cell_from_flags(model, data, layout, microbatches, settings or [], data_root)
    return verify_cells([chosen], steps)


@data_app.command(
    epilog="Exit status 1 if one of them is not whole. Example: gnnhpc data check cora"
)
def check(names: Names, data_root: Root = None) -> int:
    """Read data sets as a run would and a second time, and compare the arrays.

    An independent reader reads images and graphs as published. The digests of the second reading
    are kept, and so are those of files that were copied by hand: later runs compare their data with
    them.
    """
    from gnnhpc.data.data_commands import find_fault, named_data, record_files
    from gnnhpc.data.data_files import data_root as find_root
    from gnnhpc.validation.data_digests import verify_data

    root, whole = find_root(data_root), True
    for name in names:
        data = named_data(name)
        text = find_fault(data, root)
        if sound := text is None:
            try:
                digests = verify_data(data, root)
                sound, text = digests.verdict == "ok", digests.detail
            except InputError as error:
                sound, text = False, f"damaged: {error}"
        recorded = record_files(data, root) if sound else ""
        print(f"{name}: {text}{recorded}")
        whole = whole and sound
    return 0 if whole else 1


def keep_numpy_to_one_thread() -> None:
    """Call it before numpy is imported; a number that is set already stays.

    numpy's OpenBLAS would start a thread for each processor, and these spin for tens of
    milliseconds after a product, on processors where steps are timed.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; a user's mistakes are one line on stderr and status 2."""
    return run_app(app, "python -m gnnhpc", arguments)
