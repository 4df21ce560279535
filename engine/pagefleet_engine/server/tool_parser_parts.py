"""What the parsers of all forms share. Each of them reads one character at a time.

So every decision follows from the characters so far, and the pieces that an answer comes in make no difference.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final

from pagefleet_engine.server.tool_parser import CallPiece, Parsed
from pagefleet_engine.structured.verdicts import parse_json

_STRING: Final = r'"(?:[^"\\]|\\.)*"'
_HEAD: Final = re.compile(
    rf'\s*\{{\s*(?:"type"\s*:\s*{_STRING}\s*,\s*)?"name"\s*:\s*({_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*\{{'
)
_LONGEST_HEAD: Final = 1_024
"""A call whose arguments take longer to begin is looked at when it is complete."""


@dataclass(slots=True, kw_only=True)
class Findings:
    """Text and calls of one answer, since they were last taken. `new_id` makes the id of a call."""

    max_calls: int
    new_id: Callable[[], str]
    num_calls: int = 0
    _blank: str = ""
    """White space that is part of the text only if more text follows."""
    _texts: list[str] = field(default_factory=list)
    _calls: list[CallPiece] = field(default_factory=list)
    _arguments: list[str] = field(default_factory=list)
    """Of the last call."""

    @property
    def is_full(self) -> bool:
        """As many calls as are allowed have come."""
        return self.num_calls >= self.max_calls

    def say(self, text: str) -> None:
        whole = self._blank + text
        kept = whole.rstrip()
        self._blank = whole[len(kept) :]
        self._texts.append(kept)

    def begin(self, name: str) -> None:
        """A call; the white space before it is dropped."""
        self._close_arguments()
        self._blank = ""
        self._calls.append(CallPiece(index=self.num_calls, id=self.new_id(), name=name))
        self.num_calls += 1

    def argue(self, text: str) -> None:
        """More arguments of the last call."""
        self._arguments.append(text)

    def take(self) -> Parsed:
        self._close_arguments()
        parsed = Parsed("".join(self._texts), tuple(self._calls))
        self._texts.clear()
        self._calls.clear()
        return parsed

    def take_last(self) -> Parsed:
        """At the end: an answer without calls keeps its last white space."""
        if not self.num_calls:
            self._texts.append(self._blank)
        return self.take()

    def _close_arguments(self) -> None:
        if self._arguments:
            self._calls.append(CallPiece(index=self.num_calls - 1, arguments="".join(self._arguments)))
            self._arguments.clear()


class Reading(Enum):
    """What is known of a call after a character."""

    MORE = auto()
    CALL = auto()
    """It was one, and here it ends."""
    NO_CALL = auto()
    """It is none; `CallObject.text` is all of it."""


@dataclass(slots=True)
class CallObject:
    """Reads one `{"name": ..., "arguments": {...}}` from its first brace to its last.

    Arguments are handed on as they come once the name is known. Where the fields come in another order, the call is
    found at its end.
    """

    found: Findings
    has_begun: bool = False
    """It is a call: nothing of it becomes text any more."""
    _chars: list[str] = field(default_factory=list)
    _depth: int = 0
    _in_string: bool = False
    _escaped: bool = False
    _in_arguments: bool = False
    _outer: int = 1
    """Depth around the arguments."""

    @classmethod
    def named(cls, name: str, found: Findings) -> CallObject:
        """Reads the arguments alone, of a call whose name has come before them."""
        found.begin(name)
        return cls(found, has_begun=True, _in_arguments=True, _outer=0)

    @property
    def text(self) -> str:
        """What has been read, as long as it has not begun."""
        return "".join(self._chars)

    def ends_with(self, text: str) -> bool:
        return "".join(self._chars[-len(text) :]) == text

    def read(self, char: str) -> Reading:
        self._count(char)
        if self.has_begun:
            if self._in_arguments:
                self.found.argue(char)
                self._in_arguments = self._depth > self._outer
            return Reading.CALL if self._depth == 0 else Reading.MORE
        self._chars.append(char)
        if char == "{" and self._depth == 2 and len(self._chars) <= _LONGEST_HEAD:
            self._try_begin()
        if self._depth:
            return Reading.MORE
        return Reading.CALL if try_whole_call(self.text, self.found) else Reading.NO_CALL

    def _count(self, char: str) -> None:
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1

    def _try_begin(self) -> None:
        head = _HEAD.fullmatch(self.text)
        name = None if head is None else _name(head[1])
        if name is not None:
            self.found.begin(name)
            self.found.argue("{")
            self.has_begun = self._in_arguments = True


def _name(quoted_name: str) -> str | None:
    try:
        return str(parse_json(quoted_name))
    except ValueError:
        return None


def try_whole_call(text: str, found: Findings) -> bool:
    """Take a call that is complete; False where it is none."""
    try:
        value: Any = parse_json(text)
    except ValueError:
        return False
    name = value.get("name") if isinstance(value, dict) else None
    arguments = value.get("arguments", value.get("parameters")) if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return False
    found.begin(name)
    found.argue(json.dumps(arguments, ensure_ascii=False))
    return True


def _drop(_char: str) -> None:
    """The answer has all the calls that it may have."""


class MarkedParser(ABC):
    """A `ToolCallParser` whose calls follow a marker in the text."""

    separator = ""
    """What may stand between two calls of a list."""

    def __init__(self, marker: str, *, max_calls: int, new_id: Callable[[], str]) -> None:
        self._marker = marker
        self._found = Findings(max_calls=max_calls, new_id=new_id)
        self._object = CallObject(self._found)
        self._held = ""
        """Text that may still turn out to belong to a call; that of the object comes after it."""
        self._read: Callable[[str], None] = self._read_text

    @property
    def num_calls(self) -> int:
        return self._found.num_calls

    def push(self, piece: str) -> Parsed:
        for char in piece:
            self._read(char)
        return self._found.take()

    def flush(self) -> Parsed:
        if self.num_calls and self._held.strip() == self.separator and not self._object.text:
            self._held = ""  # nothing has followed it
        self._give_up()
        return self._found.take_last()

    @abstractmethod
    def _read_marked(self, char: str) -> None:
        """A character after the marker, which is held."""

    def _read_text(self, char: str) -> None:
        if not self._held and char != self._marker[0]:
            self._found.say(char)
            return
        text = self._held + char
        cut = next(cut for cut in range(len(text) + 1) if self._marker.startswith(text[cut:]))
        self._found.say(text[:cut])
        self._held = text[cut:]
        if self._held == self._marker:
            self._read = self._read_marked

    def _expect_object(self, char: str, read: Callable[[str], None]) -> None:
        """White space, then an object, which `read` reads; anything else is text."""
        if char.isspace():
            self._held += char
        elif char == "{":
            self._begin_object(char, read)
        else:
            self._give_up()
            self._read(char)

    def _begin_object(self, char: str, read: Callable[[str], None], call: CallObject | None = None) -> None:
        self._object = call or CallObject(self._found)
        self._read = read
        read(char)

    def _end_call(self, read: Callable[[str], None]) -> None:
        """The call has come to its end; `read` is what follows where more may come."""
        self._forget()
        self._read = _drop if self._found.is_full else read

    def _give_up(self) -> None:
        """What is held is no call, unless one has begun."""
        text = "" if self._object.has_begun else self._held + self._object.text
        self._forget()
        self._read = self._read_text
        self._found.say(text)

    def _forget(self) -> None:
        self._held, self._object = "", CallObject(self._found)
