"""What a form of tool calls is: a parser for answers that arrive in pieces, a grammar, and a way to write calls.

Pure, and nothing of an answer is ever evaluated. Each form has a module of its own (`tool_parser_hermes` and so on);
`tool_parser_parts` and `tool_parser_grammar` hold what they share, and `tool_parser_choice` picks the form of a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagefleet_engine.server.tools import Tool
from pagefleet_engine.structured.spec import Json, Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPiece:
    """Part of one call; the first one has `id` and `name`."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a piece of text held."""

    text: str = ""
    calls: tuple[CallPiece, ...] = ()


class ToolCallParser(Protocol):
    """Finds the calls of one answer. What looks like a call and is none stays text.

    Text and calls follow from the answer alone, whatever pieces it comes in, and in time proportional to it.
    """

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        ...

    def push(self, piece: str) -> Parsed:
        """What this piece completes."""
        ...

    def flush(self) -> Parsed:
        """What is still held back, at the end of the answer."""
        ...


class ToolForm(Protocol):
    """How a family of models writes its calls."""

    @property
    def name(self) -> str:
        """As `--tool-call-parser` names it."""
        ...

    @property
    def shown_ids(self) -> frozenset[int]:
        """Special tokens that are part of the form: an answer's text has to keep them."""
        ...

    def parser(self, *, max_calls: int, new_id: Callable[[], str]) -> ToolCallParser:
        """For one answer; calls beyond `max_calls` are dropped."""
        ...

    def spec(self, tools: Sequence[Tool], max_calls: int) -> Spec:
        """A grammar of one to `max_calls` calls of these tools and nothing else."""
        ...

    def write(self, calls: Sequence[Json]) -> str:
        """Calls with `name` and `arguments` as the model would write them."""
        ...

    def call_id(self, digits: str) -> str:
        """The id of a call, from 32 random hexadecimal digits."""
        ...
