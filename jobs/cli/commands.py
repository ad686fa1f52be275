"""`python -m jobs`: its commands, in the order of its help."""

from __future__ import annotations

import typer

from gnnhpc.core.cli_options import add_version, run_app_for_reader
from jobs.cli import run_commands, site_commands, submit_commands

app = typer.Typer(
    help="Submit sweeps as Slurm job arrays, show their status, rerun or cancel cells.\n\n"
    "A sweep spec becomes a run folder (manifest, batch scripts, records) and one job array for "
    "each model and layout.\n\n"
    "Exit status: 0 done, 1 something ran and failed, 2 the input was wrong.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add_version(app)
site_app = typer.Typer(help="Write and check site settings.", no_args_is_help=True)

app.command(epilog=submit_commands.SUBMIT_EPILOG)(submit_commands.submit)
app.command(epilog=run_commands.STATUS_EPILOG)(run_commands.status)
app.command("list", epilog=run_commands.LIST_EPILOG)(run_commands.list_runs)
app.command(epilog=submit_commands.RERUN_EPILOG)(submit_commands.rerun)
app.command()(submit_commands.cancel)
app.command(epilog=run_commands.LOGS_EPILOG)(run_commands.logs)
app.command(epilog=run_commands.CLEAN_EPILOG)(run_commands.clean)
app.command(epilog=site_commands.SCHEMA_EPILOG)(site_commands.schema)
site_app.command("init", epilog=site_commands.INIT_EPILOG)(site_commands.site_init)
site_app.command("check")(site_commands.site_check)
app.add_typer(site_app, name="site")


def main(arguments: list[str] | None = None) -> int:
    """Run one command; a user's mistake is one line on stderr and exit status 2."""
    return run_app_for_reader(app, "python -m jobs", arguments)
