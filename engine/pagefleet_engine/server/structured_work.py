"""Compiles what requests ask for and judges what came out, off the event loop, within bounds of time and memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from llguidance import LLMatcher, LLTokenizer

from pagefleet_engine.api import Tokenizer
from pagefleet_engine.contract.metrics import Outcome
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.server.errors import invalid, queue_full
from pagefleet_engine.server.failures import refuse_failed_work
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.structured import Wanted
from pagefleet_engine.server.tool_parser import ToolForm
from pagefleet_engine.server.tools import ToolUse
from pagefleet_engine.server.work import NoThreadFree, TooSlow, Work, WorkPool
from pagefleet_engine.structured.compiling import build_vocabulary, compile_spec
from pagefleet_engine.structured.constraint import Constraint
from pagefleet_engine.structured.matcher import GrammarMatcher
from pagefleet_engine.structured.spec import Json, Spec, schema_spec
from pagefleet_engine.structured.verdicts import QUICK, SchemaCheck, Undecided

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What a request asks for, compiled; shared by its choices."""

    start: LLMatcher | None = None
    """Where every constraint begins."""
    check: SchemaCheck | None = None
    """Of the answer as a whole."""
    tools: ToolUse | None = None
    tool_checks: dict[str, SchemaCheck] | None = None
    """Of the arguments, by the name of the tool."""

    @property
    def is_judged(self) -> bool:
        """Every answer gets a verdict, and a route may want that alone."""
        return self.check is not None or self.is_forced

    @property
    def is_forced(self) -> bool:
        """The answer has to be calls."""
        return self.tools is not None and bool(self.tools.forced)

    def constrains(self, *, validates: bool) -> bool:
        """Whether the answers are held to it, on a route that validates or on another."""
        return self.start is not None and not (validates and self.is_judged)

    def constraint(self, *, validates: bool) -> Constraint | None:
        """For one choice."""
        if self.start is None or not self.constrains(validates=validates):
            return None
        return GrammarMatcher(self.start)


FREE = Structure()


class _Kept(OrderedDict[Spec, Work[Any]]):
    """Results, done or on their way; the ones used last are at the end."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    @property
    def num_pending(self) -> int:
        return sum(not work.is_done for work in self.values())

    def trim(self) -> None:
        while len(self) > self._most:
            self.popitem(last=False)


class StructuredWork:
    """Belongs to the event loop; `close` it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._compiling = WorkPool(limits.structured_threads, "structured")
        self._judging = WorkPool(limits.judge_threads, "judge")
        self._vocabulary: Work[LLTokenizer] | None = None
        self._form: ToolForm | None = None
        self._starts = _Kept(limits.structured_cache)
        self._checks = _Kept(limits.structured_checks)

    @property
    def num_kept(self) -> int:
        """Compiled schemas and grammars, and those that are being compiled."""
        return len(self._starts) + len(self._checks)

    @property
    def form(self) -> ToolForm:
        """How the model writes tool calls."""
        assert self._form is not None, "attach comes before the first request"
        return self._form

    def attach(self, tokenizer: Tokenizer, form: ToolForm) -> None:
        """Begin to prepare the model's vocabulary."""
        self._form = form
        self._vocabulary = self._compiling.submit(lambda: build_vocabulary(tokenizer))

    async def prepare(self, wanted: Wanted | None, use: ToolUse | None = None) -> Structure:
        """Compile, or find what was compiled before. Raises `ApiError` that names the field."""
        if wanted is not None and use is not None and use.forced:
            message = f"{wanted.param}: not together with a tool_choice that asks for a call"
            raise invalid(message, param=wanted.param)
        check = start = tool_checks = None
        if wanted is not None:
            if wanted.schema is not None:
                check = await self._check(wanted.schema, param=wanted.param)
            start = await self._start(wanted.spec, param=wanted.param)
        if use is not None:
            tool_checks = {
                tool.name: await self._check(tool.parameters, param=f"tools.{position}.function.parameters")
                for position, tool in enumerate(use.tools)
            }
            if use.forced:
                start = await self._start(self.form.spec(use.forced, use.max_calls), param="tools")
        return Structure(start=start, check=check, tools=use, tool_checks=tool_checks)

    async def judge(self, check: SchemaCheck, text: str) -> Outcome:
        """The verdict on a text. What takes too much work to show is no valid answer."""
        if len(text) <= self._limits.judged_inline_chars:
            try:
                return check.judge(text, allowance=QUICK)
            except Undecided:
                pass
        try:
            return await self._judging.submit(lambda: check.judge(text)).result()
        except Undecided:
            return Outcome.SCHEMA_VIOLATION

    def close(self) -> None:
        """End the threads once their present work is done; what waits is dropped."""
        self._compiling.close()
        self._judging.close()

    async def _check(self, schema: Json, *, param: str) -> SchemaCheck:
        key = schema_spec(schema)
        return await self._cached(self._checks, key, lambda: SchemaCheck(schema), param=param)

    async def _start(self, spec: Spec, *, param: str) -> LLMatcher:
        assert self._vocabulary is not None, "attach comes before the first request"
        vocabulary = await self._result(self._vocabulary, param=param)
        return await self._cached(self._starts, spec, lambda: compile_spec(vocabulary, spec), param=param)

    async def _cached(self, kept: _Kept, key: Spec, work: Callable[[], T], *, param: str) -> T:
        """Result of `work`, which runs once for all who want it now or later. A refusal is not kept."""
        found = kept.get(key) or self._submit(kept, key, work)
        kept.move_to_end(key)
        try:
            return await self._result(found, param=param, work_s=self._limits.structured_timeout_s)
        finally:
            if found.has_failed:
                kept.pop(key, None)

    def _submit(self, kept: _Kept, key: Spec, work: Callable[[], T]) -> Work[T]:
        if self._starts.num_pending + self._checks.num_pending >= self._limits.structured_queue:
            raise queue_full("too many schemas wait to be compiled: try again", 1.0)
        found = kept[key] = self._compiling.submit(work)
        kept.trim()
        return found

    async def _result(self, work: Work[T], *, param: str, work_s: float | None = None) -> T:
        """Waiting may be given up; the work goes on for the others."""
        try:
            return await work.result(wait_s=self._limits.thread_timeout_s, work_s=work_s)
        except NoThreadFree:
            raise queue_full("other schemas take long to be compiled: try again", 1.0) from None
        except TooSlow:
            message = f"{param}: takes longer than {work_s:g} s to compile; simplify it"
            raise invalid(message, param=param) from None
        except RequestRefused as refusal:
            raise invalid(f"{param}: {refusal}", param=param) from None
        except Exception as error:
            raise refuse_failed_work(error, param=param) from None
