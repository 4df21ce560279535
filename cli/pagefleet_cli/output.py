"""How the commands print: headings, paragraphs and tables; plain text where the output is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

PLAIN_WIDTH = 120


def make_console() -> Console:
    """The terminal as it is; elsewhere 120 columns without colours or borders that need a font."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(file=sys.stdout, width=PLAIN_WIDTH, highlight=False, no_color=True, color_system=None)


def heading(console: Console, text: str) -> None:
    """A line of its own, bold on a terminal."""
    console.print(Text(text, style="bold"))


def lines(console: Console, sentences: Iterable[str], *, indent: str = "  ") -> None:
    """One line per sentence; a terminal wraps it, a pipe gets it whole."""
    for sentence in sentences:
        console.print(Text(indent + sentence), soft_wrap=not console.is_terminal)


def table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
    """Rows under a head: the first `left` columns to the left, the others to the right."""
    if not console.is_terminal:
        _plain_table(console, [tuple(columns), *map(tuple, rows)], left)
        return
    made = Table(box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        made.add_column(column, justify="left" if index < left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    console.print(made)


def _plain_table(console: Console, rows: Sequence[Sequence[str]], left: int) -> None:
    """Columns apart by two spaces, so that `awk` and people can read them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        console.print(Text("  ".join(cells).rstrip()), soft_wrap=True)
