"""What the typer apps of the three packages share: --version, error lines and exit statuses."""

from __future__ import annotations

import io
import platform
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gnnhpc.core import VERSION
from gnnhpc.core.errors import EXIT_DONE, EXIT_FAILED, InputError, report_errors
from gnnhpc.core.provenance import ROOT

_CHOICE = re.compile(r"(?P<found>'.*') is not one of (?P<allowed>'.*')")
"""What typer says of a value that is no choice."""


def make_app(text: str, **settings: Any) -> typer.Typer:
    """An app with this help text, the option --version, and errors that `run_app` prints."""
    app = typer.Typer(
        help=text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )

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

    return app


def _show_version(asked: bool) -> None:
    if asked:
        print(f"gnnhpc {VERSION} ({ROOT}, Python {platform.python_version()})")
        raise typer.Exit


def as_typed(package: str, rest: str) -> str:
    """A command as the user of this process types it: `gnnhpc status`, `python -m jobs status`."""
    if Path(sys.argv[0]).name == "gnnhpc":
        return f"gnnhpc {rest}"
    return f"python -m {package} {rest}"


def run_app(app: typer.Typer, program: str, arguments: list[str] | None) -> int:
    """Run one command; a user's mistakes are one line on stderr and status 2.

    What a terminal's encoding lacks is printed as an escape: an error after a submission would hide
    the ids of its jobs. An interrupt prints one word, and a closed pipe is no error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    @report_errors
    def run() -> int:
        try:
            return int(app(arguments, prog_name=program, standalone_mode=False) or 0)
        except typer.TyperException as error:
            raise _input_error(error) from None
        except typer.Abort:
            return EXIT_FAILED
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return EXIT_FAILED
        except BrokenPipeError:
            # The reader, such as `head`, has closed the pipe.
            sys.stderr.close()
            return EXIT_DONE

    return run()


def _input_error(error: typer.TyperException) -> InputError:
    """The error as one line, which names the choices of a flag that has some."""
    choice = _CHOICE.search(str(error))
    if choice is not None and isinstance(error, typer.BadParameter) and error.param is not None:
        allowed = choice["allowed"].replace("'", "")
        return InputError(error.param.opts[0], None, choice["found"], allowed)
    # typer gives no text where it has shown the help.
    text = str(getattr(error, "format_message", error.__str__)()).rstrip(".") or "no command"
    found = (text[:1].lower() + text[1:]).removeprefix("got ")
    return InputError("command line", None, found, "what --help says")
