"""Follows one choice: finds the tool calls in its text, and counts the verdict on the finished answer, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from pagefleet_engine.contract.metrics import Outcome
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.answer import Delta
from pagefleet_engine.server.routes import RoutePick
from pagefleet_engine.server.structured_work import Structure, StructuredWork
from pagefleet_engine.server.tool_parser import CallPiece, ToolCallParser

Count = Callable[[str, Precision | None, bool, Outcome], None]
"""Route, precision (None: mixed), constrained, outcome."""

_WORST_FIRST = (Outcome.INVALID_JSON, Outcome.SCHEMA_VIOLATION, Outcome.VALID)


@dataclass(slots=True)
class _Call:
    name: str
    arguments: str = ""


@dataclass(slots=True, kw_only=True)
class Watch:
    """One choice of a job with a `Structure`. Mutable; `close` it when the choice ends, however it does."""

    structure: Structure
    work: StructuredWork
    pick: RoutePick
    count: Count
    new_digits: Callable[[], str]
    """32 random hexadecimal digits."""
    _parser: ToolCallParser | None = field(init=False, default=None)
    _texts: list[str] = field(init=False, default_factory=list)
    _calls: list[_Call] = field(init=False, default_factory=list)
    _is_mixed: bool = field(init=False, default=False)
    _is_counted: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        use, held_to_text = self.structure.tools, self.structure.check is not None and self._is_constrained
        if use is not None and not held_to_text:
            self._parser = self.work.form.parser(max_calls=use.max_calls, new_id=self._new_id)

    async def see(self, delta: Delta, *, mixed: bool) -> Delta:
        """The delta as the client gets it. The last one is judged before it leaves."""
        self._is_mixed = mixed
        if self._parser is not None:
            delta = self._find_calls(delta, self._parser)
        self._texts.append(delta.text)
        if delta.finish_reason is not None:
            await self._judge(delta.finish_reason)
        return delta

    def refused(self) -> None:
        """The engine did not take the request: there is no answer to count."""
        self._is_counted = True

    def close(self) -> None:
        """An answer that did not come to its end is counted too."""
        if self.structure.is_judged or self._calls:
            self._count(Outcome.ABORTED)

    @property
    def _is_constrained(self) -> bool:
        return self.structure.constrains(validates=self.pick.validates)

    def _new_id(self) -> str:
        return self.work.form.call_id(self.new_digits())

    def _find_calls(self, delta: Delta, parser: ToolCallParser) -> Delta:
        parsed = parser.push(delta.text)
        text, pieces = parsed.text, parsed.calls
        if delta.finish_reason is not None:
            rest = parser.flush()
            text, pieces = text + rest.text, pieces + rest.calls
        for piece in pieces:
            self._keep(piece)
        return replace(delta, text=text, tool_calls=pieces, has_called=parser.num_calls > 0)

    def _keep(self, piece: CallPiece) -> None:
        if piece.name is not None:
            self._calls.append(_Call(piece.name))
        self._calls[piece.index].arguments += piece.arguments

    async def _judge(self, reason: FinishReason) -> None:
        if not self.structure.is_judged and not self._calls:
            self._is_counted = True  # free text
            return
        outcome = await self._verdict()
        if outcome is not Outcome.VALID and reason is FinishReason.LENGTH:
            outcome = Outcome.TRUNCATED
        self._count(outcome)

    async def _verdict(self) -> Outcome:
        if self._calls:
            found = [await self._judge_call(call) for call in self._calls]
            return min(found, key=_WORST_FIRST.index)
        if self.structure.check is None:
            return Outcome.INVALID_JSON  # a call was asked for
        return await self.work.judge(self.structure.check, "".join(self._texts))

    async def _judge_call(self, call: _Call) -> Outcome:
        use = self.structure.tools
        assert use is not None, "calls are found only where there are tools"
        allowed = use.forced or use.tools
        check = (self.structure.tool_checks or {}).get(call.name)
        if check is None or all(tool.name != call.name for tool in allowed):
            return Outcome.SCHEMA_VIOLATION
        return await self.work.judge(check, call.arguments)

    def _count(self, outcome: Outcome) -> None:
        if not self._is_counted:
            self._is_counted = True
            precision = None if self._is_mixed or self.pick.by_length else self.pick.precision
            self.count(self.pick.route, precision, self._is_constrained, outcome)
