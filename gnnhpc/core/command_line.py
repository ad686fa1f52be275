"""What the commands of the three packages share: --version, and how a typer app ends."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, InputError, report_errors


def add_version(app: typer.Typer) -> None:
    """Give an app the option --version."""

    @app.callback()
    def options(
        version: Annotated[
            bool,
            typer.Option(
                "--version", callback=_show_version, is_eager=True, help="Show version and place."
            ),
        ] = False,
    ) -> None:
        pass


def _show_version(asked: bool) -> None:
    if asked:
        import gnnhpc

        place = Path(gnnhpc.__file__).parents[1]
        print(f"gnnhpc {gnnhpc.__version__} ({place}, Python {platform.python_version()})")
        raise typer.Exit


def as_typed(package: str, rest: str) -> str:
    """A command as the user of this process types it: `gnnhpc status`, `python -m jobs status`."""
    if Path(sys.argv[0]).name == "gnnhpc":
        return f"gnnhpc {rest}"
    return f"python -m {package} {rest}"


def run_app(app: typer.Typer, program: str, arguments: list[str] | None) -> int:
    """Run one command; errors a user can mend are one line on stderr and status 2."""

    @report_errors
    def run() -> int:
        try:
            return int(app(arguments, prog_name=program, standalone_mode=False) or 0)
        except typer.TyperException as error:
            raise InputError("command line", None, _words(error), "what --help says") from None
        except typer.Abort:
            return EXIT_FAILED

    return run()


def run_app_for_reader(app: typer.Typer, program: str, arguments: list[str] | None) -> int:
    """As `run_app`, where an interrupt is one word and a closed pipe is no error."""
    try:
        return run_app(app, program, arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        # `| head` has seen enough.
        sys.stderr.close()
        return EXIT_DONE


def _words(error: typer.TyperException) -> str:
    """What the command line's reader has to say; none where it has shown the help instead."""
    say = getattr(error, "format_message", None)
    return str(say() if say else error).rstrip(".") or "no command"
