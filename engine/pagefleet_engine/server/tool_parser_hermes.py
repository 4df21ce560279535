"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, the form that Hermes and Qwen models were trained on.

Calls may stand anywhere in an answer; text around them stays text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pagefleet_engine.server.tool_parser_grammar import as_json, call_rules, repeated, shown, terminal
from pagefleet_engine.server.tool_parser_parts import MarkedParser, Reading
from pagefleet_engine.server.tools import Tool
from pagefleet_engine.structured.spec import Json, Kind, Spec, quoted

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
_LINE: Final = quoted("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class HermesForm:
    """`ToolForm` of Hermes and Qwen."""

    open_id: int | None = None
    """Special token of the tag; None where the tag is text, as in the models of this family."""
    close_id: int | None = None
    name: str = "hermes"

    @property
    def shown_ids(self) -> frozenset[int]:
        return shown(self.open_id, self.close_id)

    def parser(self, *, max_calls: int, new_id: Callable[[], str]) -> HermesParser:
        return HermesParser(max_calls=max_calls, new_id=new_id)

    def spec(self, tools: Sequence[Tool], max_calls: int) -> Spec:
        lines = [
            f"start: {repeated('call', _LINE, max_calls)}",
            f"call: {terminal(OPEN, self.open_id)} {_LINE} function {_LINE} {terminal(CLOSE, self.close_id)}",
            *call_rules(tools, "arguments"),
        ]
        return Spec(kind=Kind.GRAMMAR, text="\n".join(lines) + "\n")

    def write(self, calls: Sequence[Json]) -> str:
        return "\n".join(f"{OPEN}\n{as_json(call, 'arguments')}\n{CLOSE}" for call in calls)

    def call_id(self, digits: str) -> str:
        return f"call_{digits[:24]}"


class HermesParser(MarkedParser):
    """`ToolCallParser` of this form."""

    def __init__(self, *, max_calls: int, new_id: Callable[[], str]) -> None:
        super().__init__(OPEN, max_calls=max_calls, new_id=new_id)
        self._tail = ""

    def _read_marked(self, char: str) -> None:
        self._expect_object(char, self._read_object)

    def _read_object(self, char: str) -> None:
        reading = self._object.read(char)
        if reading is Reading.CALL:
            self._end_call(self._read_tail)
        elif reading is Reading.NO_CALL or self._is_closed(char):
            self._give_up()

    def _is_closed(self, char: str) -> bool:
        """The tag ends before the object does, and no call has begun."""
        return char == CLOSE[-1] and not self._object.has_begun and self._object.ends_with(CLOSE)

    def _read_tail(self, char: str) -> None:
        """Nothing belongs between the object and the closing tag."""
        self._tail = (self._tail + char)[-len(CLOSE) :]
        if self._tail == CLOSE:
            self._tail = ""
            self._read = self._read_text
