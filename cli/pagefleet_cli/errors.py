"""What the commands raise on purpose; `main` prints it as one line."""

from __future__ import annotations


class CommandError(Exception):
    """Bad input or a missing thing: one line that names it and the remedy."""
