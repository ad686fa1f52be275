"""The commands of `python -m analysis`; each imports what it needs when it is called."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnnhpc.core.cli_options import make_app, run_app
from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, InputError

if TYPE_CHECKING:
    from analysis.load.run_data import RunData

app = make_app(
    "Make tables, figures and reports of runs.\n\n"
    "Works on any copy of a run folder, also while cells still run. Exit status: "
    "0 done, 1 something is slower or not ok, 2 the input was wrong."
)

_KEYS = ("model", "data", "layout", "microbatches")
_MEASURES = (
    *("n", "mean_s", "speedup", "speedup_low", "speedup_high", "bound", "efficiency", "flags"),
)
"""Columns of summary.csv that `report` prints, with the settings that vary."""


@app.command(
    epilog="Examples:\n\ngnnhpc report runs/quickstart\n\n"
    "gnnhpc report runs/raffi --baseline seq:5 --out ~/reports/raffi\n\n"
    "gnnhpc report runs/raffi --only speedup --width 84mm\n\n"
    "gnnhpc report runs/cluster-a runs/cluster-b --out ~/reports/both"
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders; several make one report, in --out."),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write to; default RUN/report.")
    ] = None,
    baseline: Annotated[
        str,
        typer.Option(
            metavar="LAYOUT[:M]",
            help="The baseline of speedups: a layout, with one micro-batch unless M is set.",
        ),
    ] = "seq",
    separate: Annotated[
        bool,
        typer.Option(
            "--separate",
            help="Show cells of another environment (code, versions, CPU, threads, kernels) as "
            "rows of their own, compared among themselves; else they are left out.",
        ),
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="FIGURE",
            help="Make only this figure, such as speedup (for every model and data) or "
            "speedup-vig-cifar10, into DIR or RUN/report/only.",
        ),
    ] = None,
    width: Annotated[
        str | None,
        typer.Option(
            metavar="84mm", help="With --only: the figure's width; letters keep their size."
        ),
    ] = None,
) -> int:
    """Write summary.csv, steps, tables, figures, report.md and report.html of a run, or several.

    Runs with equal code, versions, CPU, threads and kernels share rows; other runs have rows of
    their own. Status 1 when records are damaged or equivalent cells learn something else.
    """
    from analysis.render.formats import print_frame
    from analysis.report.report import write_report, write_single_figures
    from analysis.summary.settings_in_words import varying_settings

    if only is not None:
        summary, paths = write_single_figures(
            runs, only, out, baseline, separate=separate, width=width
        )
        for path in paths:
            print(f"figure: {path}")
        _print_left_out(summary.run)
        return _print_invalid(summary.run)
    if width is not None:
        raise InputError("--width", None, width, "with --only FIGURE")
    summary, folder = write_report(runs, out, baseline, separate=separate)
    for line in summary.run.notes:
        print(line)
    measured = summary.table[summary.table["n"] > 0]
    if len(measured):
        settings = varying_settings(measured)
        print_frame(measured[[*_KEYS, *settings, "phase", *_MEASURES]])
    _print_left_out(summary.run)
    print(f"report: {folder / 'report.html'}")
    return _print_invalid(summary.run)


def _print_left_out(loaded: RunData) -> None:
    left_out = int((~loaded.cells["counts"].astype(bool)).sum())
    missing = int((loaded.cells["status"] == "missing").sum())
    which = f", {missing} of them not run" if missing else ""
    if left_out:
        total = len(loaded.cells)
        print(f"{left_out} of {total} cells left out{which}; see the report's first page")


def _print_invalid(loaded: RunData) -> int:
    """Print damaged and diverging cells, which `status` does not show, to stderr; exit status."""
    from analysis.load.read_cell_flags import DAMAGED, EQUIVALENT

    wrong = loaded.checks[loaded.checks["name"].isin((DAMAGED, EQUIVALENT))].drop_duplicates("cell")
    for cell, detail in zip(wrong["cell"], wrong["detail"], strict=True):
        print(f"{cell}: {detail}", file=sys.stderr)
    return EXIT_FAILED if len(wrong) else EXIT_DONE


@app.command(
    epilog="Examples:\n\ngnnhpc compare runs/before runs/after --tolerance 0.05\n\n"
    "gnnhpc compare runs/cluster-a runs/cluster-b --of median --out ~/compared"
)
def compare(
    run_a: Annotated[Path, typer.Argument(metavar="RUN_A", help="The run to compare with.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="The run that may be slower.")],
    tolerance: Annotated[
        float,
        typer.Option(
            metavar="SHARE",
            help="The share that a run may be slower: the status is 1 when the whole "
            "interval of a ratio lies above 1 + SHARE.",
        ),
    ] = 0.02,
    of: Annotated[
        str,
        typer.Option(
            metavar="mean|median", help="The average of each run's steps that is compared."
        ),
    ] = "mean",
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write tables to; default none.")
    ] = None,
) -> int:
    """Compare two runs cell by cell; status 1 when something became slower than is tolerated."""
    from analysis.render.formats import print_frame
    from analysis.report.write_compare_page import comparison_lines, result_lines, write_comparison
    from analysis.summary.compare_runs import compare_runs

    found = compare_runs(run_a, run_b, tolerance, of)
    for line in comparison_lines(found):
        print(line)
    print_frame(found.steps.drop(columns=["what", "slower"]))
    for line in result_lines(found):
        print(line)
    if out is not None:
        write_comparison(found, out)
        print(f"tables: {out}")
    return EXIT_FAILED if found.slower else EXIT_DONE


@app.command(epilog="Examples:\n\ngnnhpc check runs/raffi\n\ngnnhpc check runs/raffi --repeats 5")
def check(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, such as runs/quickstart.")
    ],
    repeats: Annotated[
        int, typer.Option(metavar="N", help="The fewest repeats of a configuration that pass.")
    ] = 3,
) -> int:
    """Answer what a reviewer asks of a run, one line a question; status 1 when one is not ok."""
    from analysis.report.checklist import check_run

    answers = list(check_run(run, repeats))
    for answer in answers:
        print(answer.line)
    wrong = sum(not answer.ok for answer in answers)
    print(f"{len(answers) - wrong} of {len(answers)} ok")
    return EXIT_FAILED if wrong else EXIT_DONE


@app.command(epilog="Example: gnnhpc import-csv seq.csv pp2_m5.csv dp2-pp2_m5.csv")
def import_csv(
    logs: Annotated[
        list[Path],
        typer.Argument(
            metavar="LOG...",
            help="CSV files, or folders of them, with a row a step and the layout in their name. "
            "Columns: seconds, step_time_s or step_time_ms, and phase (train or test) if there are "
            "both.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write tables and a page to.")
    ] = None,
) -> int:
    """Make a table of step times and speedups, with their bounds, of any program's step logs."""
    from analysis.render.formats import print_frame
    from analysis.report.import_csv import import_logs, write_import_page

    table = import_logs(logs)
    print_frame(table.frame)
    if out is not None:
        print(f"report: {write_import_page(table, out)}")
    return EXIT_DONE


def main(arguments: list[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit status 2."""
    return run_app(app, "python -m analysis", arguments)
