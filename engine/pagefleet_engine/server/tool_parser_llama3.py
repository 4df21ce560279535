"""`{"name": ..., "parameters": {...}}` as the whole answer, as Llama 3.1 and later write it; `;` between several.

The answer, or what follows `<|python_tag|>`, has to begin with the object: one inside a text is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pagefleet_engine.server.tool_parser_grammar import as_json, call_rules, repeated, shown
from pagefleet_engine.server.tool_parser_parts import MarkedParser, Reading
from pagefleet_engine.server.tools import Tool
from pagefleet_engine.structured.spec import Json, Kind, Spec, quoted

TAG: Final = "<|python_tag|>"
_FIRST_KEY: Final = re.compile(r'\{\s*(?:"(?P<key>[^"\\]*)(?P<end>")?)?')
_KEYS: Final = ("name", "parameters", "arguments", "type")
_LONGEST_KEY: Final = 64
"""Characters until the first key of a call has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Form:
    """`ToolForm` of Llama 3.x."""

    tag_id: int | None = None
    """Special token of the tag."""
    name: str = "llama3_json"

    @property
    def shown_ids(self) -> frozenset[int]:
        return shown(self.tag_id)

    def parser(self, *, max_calls: int, new_id: Callable[[], str]) -> Llama3Parser:
        return Llama3Parser(max_calls=max_calls, new_id=new_id)

    def spec(self, tools: Sequence[Tool], max_calls: int) -> Spec:
        start = f"start: {repeated('function', quoted('; '), max_calls)}"
        return Spec(kind=Kind.GRAMMAR, text="\n".join([start, *call_rules(tools, "parameters")]) + "\n")

    def write(self, calls: Sequence[Json]) -> str:
        return "; ".join(as_json(call, "parameters") for call in calls)

    def call_id(self, digits: str) -> str:
        return f"call_{digits[:24]}"


class Llama3Parser(MarkedParser):
    """`ToolCallParser` of this form."""

    separator = ";"

    def __init__(self, *, max_calls: int, new_id: Callable[[], str]) -> None:
        super().__init__(TAG, max_calls=max_calls, new_id=new_id)
        self._read = self._read_marked
        self._is_likely = False
        """The object at hand begins as a call does."""

    def _read_marked(self, char: str) -> None:
        """At the beginning, after the tag, and after a separator: white space, then an object."""
        self._is_likely = False
        self._expect_object(char, self._read_object)

    def _read_object(self, char: str) -> None:
        reading = self._object.read(char)
        if reading is Reading.CALL:
            self._end_call(self._read_between)
        elif reading is Reading.NO_CALL or not self._may_be_call():
            self._give_up()

    def _may_be_call(self) -> bool:
        """Other JSON is an answer that a client waits for: it is let go at its first key."""
        if not self._is_likely and not self._object.has_begun:
            text = self._object.text
            found = _FIRST_KEY.fullmatch(text)
            if found is None or len(text) > _LONGEST_KEY:
                return False
            self._is_likely = found["end"] is not None
            return not self._is_likely or found["key"] in _KEYS
        return True

    def _read_between(self, char: str) -> None:
        """After a call: white space, then a separator or another object."""
        if char == self.separator:
            self._held += char
            self._read = self._read_marked
        else:
            self._read_marked(char)
