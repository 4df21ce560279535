"""`pagefleet` and `kubectl pagefleet`: the commands, and the one place where their errors become one line.

Nothing here loads torch: `bench` does so inside its commands.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated

import typer

from pagefleet_cli.bench.commands import bench
from pagefleet_cli.errors import CommandError
from pagefleet_cli.explain import explain
from pagefleet_cli.overview import status

app = typer.Typer(
    help="Fleets of large language models on Kubernetes: what the operator did and why, and measurements.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(bench, name="bench")
app.command()(explain)
app.command()(status)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_of("pagefleet"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of all commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code: 0, 1 when a command could not do its work, 2 for a wrong command line."""
    program = "kubectl pagefleet" if Path(sys.argv[0]).name.startswith("kubectl-") else "pagefleet"
    command = typer.main.get_command(app)
    try:
        result = command.main(args=None if argv is None else list(argv), prog_name=program, standalone_mode=False)
    except CommandError as error:
        return _say(program, str(error), 1)
    except typer.TyperException as error:
        return _say(program, f"{' '.join(error.format_message().split())} ({program} --help shows what there is)", 2)
    except typer.Abort:
        return _say(program, "interrupted", 130)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough; Python must not try to flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


def _say(program: str, line: str, code: int) -> int:
    print(f"{program}: {line}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
