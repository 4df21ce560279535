"""`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, and `[TOOL_CALLS]name[ARGS]{...}` as later models write it.

Both are understood whichever a model was trained on; the grammar and the dialogue use the model's own. Mistral's
templates want ids of nine letters and digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pagefleet_engine.server.tool_parser_grammar import arguments_rule, as_json, call_rules, repeated, shown, terminal
from pagefleet_engine.server.tool_parser_parts import CallObject, MarkedParser, Reading
from pagefleet_engine.server.tools import Tool
from pagefleet_engine.structured.spec import Json, Kind, Spec, quoted

MARK: Final = "[TOOL_CALLS]"
ARGS: Final = "[ARGS]"
CALL_ID: Final = "[CALL_ID]"


def _begun(literal: str, rest: str) -> str:
    """A pattern of any beginning of `literal`, with `rest` after all of it."""
    for char in reversed(literal):
        rest = f"(?:{re.escape(char)}{rest})?"
    return rest


_ID: Final = "[A-Za-z0-9_-]{0,64}"
_HEAD: Final = re.compile(rf"\s?([A-Za-z0-9_.-]{{1,64}})(?:\[CALL_ID\]{_ID})?(?:\[ARGS\])?\s?")
_HEAD_BEGUN: Final = re.compile(
    r"\s?[A-Za-z0-9_.-]{0,64}(?:" + _begun(ARGS, r"\s?") + "|" + _begun(CALL_ID, _ID + _begun(ARGS, r"\s?")) + r"|\s)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MistralForm:
    """`ToolForm` of Mistral."""

    mark_id: int | None = None
    """Special token of the mark; None where the mark is text."""
    args_id: int | None = None
    call_id_id: int | None = None
    is_named: bool = False
    """The model writes `name[ARGS]{...}`."""
    name: str = "mistral"

    @property
    def shown_ids(self) -> frozenset[int]:
        return shown(self.mark_id, self.args_id, self.call_id_id)

    def parser(self, *, max_calls: int, new_id: Callable[[], str]) -> MistralParser:
        return MistralParser(max_calls=max_calls, new_id=new_id)

    def spec(self, tools: Sequence[Tool], max_calls: int) -> Spec:
        mark = terminal(MARK, self.mark_id)
        if self.is_named:
            args = terminal(ARGS, self.args_id)
            lines = [f"start: call{{1,{max_calls}}}", f"call: {mark} function"]
            lines.append("function: " + " | ".join(f"f{i}" for i in range(len(tools))))
            for i, tool in enumerate(tools):
                lines += [f"f{i}: {quoted(tool.name)} {args} a{i}", arguments_rule(i, tool)]
        else:
            calls = repeated("function", quoted(", "), max_calls)
            lines = [f'start: {mark} " "? "[" {calls} "]"', *call_rules(tools, "arguments")]
        return Spec(kind=Kind.GRAMMAR, text="\n".join(lines) + "\n")

    def write(self, calls: Sequence[Json]) -> str:
        if self.is_named:
            texts = (json.dumps(call["arguments"], ensure_ascii=False) for call in calls)
            return "".join(f"{MARK}{call['name']}{ARGS}{text}" for call, text in zip(calls, texts, strict=True))
        return f"{MARK}[{', '.join(as_json(call, 'arguments') for call in calls)}]"

    def call_id(self, digits: str) -> str:
        return digits[:9]


class MistralParser(MarkedParser):
    """`ToolCallParser` of this form."""

    separator = ","

    def __init__(self, *, max_calls: int, new_id: Callable[[], str]) -> None:
        super().__init__(MARK, max_calls=max_calls, new_id=new_id)

    def _read_marked(self, char: str) -> None:
        """After the mark: a list, or a name."""
        head = self._held[len(MARK) :]
        if char == "[" and not head.strip():
            self._held += char
            self._read = self._read_item
        elif char == "{" and (found := _HEAD.fullmatch(head)) is not None:
            self._begin_object(char, self._read_arguments, CallObject.named(found[1], self._found))
        elif _HEAD_BEGUN.fullmatch(head + char) is not None:
            self._held += char
        else:
            self._give_up_name(head + char)

    def _give_up_name(self, text: str) -> None:
        """The mark is text; what follows may hold the beginning of another."""
        self._held = MARK
        self._give_up()
        for char in text:
            self._read(char)

    def _read_arguments(self, char: str) -> None:
        if self._object.read(char) is Reading.CALL:
            self._end_call(self._read_text)

    def _read_item(self, char: str) -> None:
        """In the list, where a call has to come."""
        self._expect_object(char, self._read_object)

    def _read_object(self, char: str) -> None:
        reading = self._object.read(char)
        if reading is Reading.CALL:
            self._end_call(self._read_after_item)
        elif reading is Reading.NO_CALL:
            self._give_up()

    def _read_after_item(self, char: str) -> None:
        if char.isspace():
            self._held += char
        elif char == self.separator:
            self._held += char
            self._read = self._read_item
        else:
            self._give_up()
            if char != "]":
                self._read(char)
