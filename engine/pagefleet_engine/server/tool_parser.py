"""Finds tool calls in an answer that arrives in pieces, and hands their arguments on as they come.

Pure, linear in the text, and nothing of it is ever evaluated. What looks like a call and is none stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from pagefleet_engine.server.tools import CLOSE, OPEN
from pagefleet_engine.structured.verdicts import parse_json

_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
_LONGEST_HEAD: Final = 1_024
"""A call whose name takes longer to come is looked at when it is complete."""


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


class _State(Enum):
    TEXT = auto()
    HEAD = auto()
    ARGUMENTS = auto()
    TAIL = auto()
    FULL = auto()
    """As many calls as are allowed have come; the rest is dropped."""


@dataclass(slots=True)
class _ObjectScanner:
    """Finds the end of a JSON object whose first character is the next one."""

    depth: int = 0
    in_string: bool = False
    escaped: bool = False

    def end(self, text: str) -> int | None:
        """Characters of `text` up to the end of the object, or None if it goes on."""
        for position, char in enumerate(text):
            if self.in_string:
                self.in_string = self.escaped or char != '"'
                self.escaped = char == "\\" and not self.escaped
            elif char == '"':
                self.in_string = True
            elif char in "{[":
                self.depth += 1
            elif char in "}]":
                self.depth -= 1
                if self.depth <= 0:
                    return position + 1
        return None


@dataclass(slots=True, kw_only=True)
class ToolCallParser:
    """One answer. `new_id` makes the id of a call."""

    max_calls: int
    new_id: Callable[[], str]
    num_calls: int = 0
    _state: _State = _State.TEXT
    _held: str = ""
    _blank: str = ""
    """White space that is part of the text only if more text follows."""
    _scanner: _ObjectScanner = field(default_factory=_ObjectScanner)
    _texts: list[str] = field(default_factory=list)
    _calls: list[CallPiece] = field(default_factory=list)

    def push(self, piece: str) -> Parsed:
        """What this piece completes."""
        self._held += piece
        while self._advance():
            pass
        return self._take()

    def flush(self) -> Parsed:
        """What is still held back, at the end of the answer."""
        held, self._held = self._held, ""
        if self._state is _State.TEXT:
            self._say(held)
            if not self.num_calls:
                self._texts.append(self._blank)
        elif self._state is _State.HEAD and not self._whole_call(held):
            self._say(OPEN + held)
        self._state = _State.FULL
        return self._take()

    def _advance(self) -> bool:
        """Consume from what is held. False when more text is needed."""
        if self._state is _State.TEXT:
            return self._read_text()
        if self._state is _State.HEAD:
            return self._read_head()
        if self._state is _State.ARGUMENTS:
            return self._read_arguments()
        if self._state is _State.TAIL:
            return self._read_tail()
        self._held = ""
        return False

    def _read_text(self) -> bool:
        start = self._held.find(OPEN)
        if start >= 0:
            self._say(self._held[:start])
            self._held = self._held[start + len(OPEN) :]
            self._state = _State.HEAD
            return True
        keep = next((n for n in range(len(OPEN) - 1, 0, -1) if self._held.endswith(OPEN[:n])), 0)
        cut = len(self._held) - keep
        self._say(self._held[:cut])
        self._held = self._held[cut:]
        return False

    def _read_head(self) -> bool:
        found = _HEAD.match(self._held) if len(self._held) <= _LONGEST_HEAD or CLOSE in self._held else None
        name = None if found is None else _name(found[1])
        if found is not None and name is not None:
            self._begin(name)
            self._held = self._held[found.end() :]
            self._scanner, self._state = _ObjectScanner(), _State.ARGUMENTS
            return True
        end = self._held.find(CLOSE)
        if end < 0:
            return False
        block, self._held = self._held[:end], self._held[end + len(CLOSE) :]
        self._state = _State.TEXT
        if not self._whole_call(block):
            self._say(OPEN + block + CLOSE)
        elif self.num_calls >= self.max_calls:
            self._state = _State.FULL
        return True

    def _read_arguments(self) -> bool:
        if not self._held:
            return False
        end = self._scanner.end(self._held)
        text, self._held = (self._held, "") if end is None else (self._held[:end], self._held[end:])
        self._calls.append(CallPiece(index=self.num_calls - 1, arguments=text))
        if end is not None:
            self._state = _State.TAIL if self.num_calls < self.max_calls else _State.FULL
        return end is not None

    def _read_tail(self) -> bool:
        end = self._held.find(CLOSE)
        if end < 0:
            self._held = self._held[-len(CLOSE) :]
            return False
        self._held = self._held[end + len(CLOSE) :]
        self._state = _State.TEXT
        return True

    def _whole_call(self, block: str) -> bool:
        """Take a call whose fields come in another order than usual."""
        try:
            value: Any = parse_json(block)
        except ValueError:
            return False
        name = value.get("name") if isinstance(value, dict) else None
        arguments = value.get("arguments", value.get("parameters")) if isinstance(value, dict) else None
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return False
        self._begin(name)
        self._calls.append(CallPiece(index=self.num_calls - 1, arguments=json.dumps(arguments, ensure_ascii=False)))
        return True

    def _begin(self, name: str) -> None:
        self._blank = ""
        self._calls.append(CallPiece(index=self.num_calls, id=self.new_id(), name=name))
        self.num_calls += 1

    def _say(self, text: str) -> None:
        whole = self._blank + text
        kept = whole.rstrip()
        self._blank = whole[len(kept) :]
        self._texts.append(kept)

    def _take(self) -> Parsed:
        parsed = Parsed("".join(self._texts), tuple(self._calls))
        self._texts.clear()
        self._calls.clear()
        return parsed


def _name(quoted: str) -> str | None:
    try:
        return str(json.loads(quoted))
    except ValueError:
        return None
