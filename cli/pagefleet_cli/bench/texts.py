"""What is measured on: a long real text that every Python has, and the questions of a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pagefleet_cli.errors import CommandError

QUESTIONS: Final = (
    "I want to grow tomatoes on a small balcony. What do I need to start?",
    "How large should the pots be, and what soil goes into them?",
    "My balcony gets sun only in the morning. Is that enough?",
    "How often should I water them in summer?",
    "The leaves of one plant have turned yellow. What could be the cause?",
    "Can I feed the plants with something from my kitchen?",
    "When should I expect the first fruit?",
    "Birds have started to peck at the fruit. How do I keep them away?",
    "What can I cook with a large harvest of tomatoes?",
    "Please summarise the most important advice that you gave me.",
)
"""Ten turns about one thing, so that later answers depend on earlier ones."""


def read_text(path: Path | None) -> str:
    """The file's text, or without one the help topics of CPython: 465,000 characters of English prose with code.

    Raises `CommandError`.
    """
    if path is None:
        from pydoc_data.topics import topics

        return "\n\n".join(topics[name] for name in sorted(topics))
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise CommandError(f"--text {path}: {reason}") from error


def origin_of(path: Path | None) -> str:
    """How a report calls the text."""
    return "pydoc_data.topics of CPython" if path is None else path.name
