"""Structured output without a server: what `SamplingParams.structured_outputs` asks for, checked and compiled.

The same rules, limits and compiler as behind HTTP, in the caller's own thread.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final

from llguidance import LLMatcher, LLTokenizer

from pagefleet_engine.api import Tokenizer
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.structured import Wanted, check_structured_outputs
from pagefleet_engine.structured.compiling import build_vocabulary, compile_spec
from pagefleet_engine.structured.constraint import Constraint
from pagefleet_engine.structured.matcher import GrammarMatcher
from pagefleet_engine.structured.verdicts import SchemaCheck

_FIELD: Final = "structured_outputs"


class OfflineForm:
    """One compiled form; every answer gets a constraint of its own."""

    def __init__(self, start: LLMatcher | None) -> None:
        self._start = start

    def constraint(self) -> Constraint | None:
        """None where nothing was asked for."""
        return None if self._start is None else GrammarMatcher(self._start)


class OfflineForms:
    """Compiles forms for one model; its vocabulary is prepared when the first one is asked for."""

    def __init__(self, tokenizer: Tokenizer, limits: Limits | None = None) -> None:
        self._tokenizer = tokenizer
        self._limits = limits or Limits()

    def compile(self, value: Any) -> OfflineForm:
        """Raises `RequestRefused` with one line that names the field; its `param` is that field."""
        wanted = self._check(value)
        if wanted is None:
            return OfflineForm(None)
        try:
            if wanted.schema is not None:
                SchemaCheck(wanted.schema)
            return OfflineForm(compile_spec(self._vocabulary, wanted.spec))
        except RequestRefused as refusal:
            raise RequestRefused(f"{wanted.param}: {refusal}", param=wanted.param) from None

    def _check(self, value: Any) -> Wanted | None:
        try:
            return check_structured_outputs(value, self._limits)
        except ApiError as error:
            raise RequestRefused(str(error), param=error.body.param or _FIELD) from None

    @cached_property
    def _vocabulary(self) -> LLTokenizer:
        return build_vocabulary(self._tokenizer)
