"""`python -m jobs`: its commands, in the order of its help."""

from __future__ import annotations

import typer

from gnnhpc.core.cli_support import add_version, run_app_for_reader
from jobs.commands import clean, logs, rerun, schema, site, status, submit

app = typer.Typer(
    help="Submit sweeps as Slurm job arrays, show their status, rerun or cancel cells.\n\n"
    "A sweep spec becomes a run folder (manifest, batch scripts, records) and one job array a "
    "model and layout. Exit status: 0 done, 1 something ran and failed, 2 the input was wrong.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_version(app)
site_app = typer.Typer(help="Write and check site settings.", no_args_is_help=True)

app.command(epilog=submit.EPILOG)(submit.submit)
app.command(epilog=status.EPILOG)(status.status)
app.command("list", epilog=status.LIST_EPILOG)(status.list_runs)
app.command(epilog=rerun.EPILOG)(rerun.rerun)
app.command()(rerun.cancel)
app.command(epilog=logs.EPILOG)(logs.logs)
app.command(epilog=clean.EPILOG)(clean.clean)
app.command(epilog=schema.EPILOG)(schema.schema)
site_app.command("init", epilog=site.INIT_EPILOG)(site.site_init)
site_app.command("check")(site.site_check)
app.add_typer(site_app, name="site")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit status 2."""
    return run_app_for_reader(app, "python -m jobs", arguments)
