"""From a specification to a matcher over the model's vocabulary.

llguidance compiles without the interpreter's lock, never raises for a bad specification, and bounds its own work, in
compiling and at each token.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from pagefleet_engine.api import Tokenizer
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.structured.deep_stack import with_deep_stack
from pagefleet_engine.structured.numbers import check_numbers
from pagefleet_engine.structured.spec import Kind, Spec

LIMITS: Final = LLParserLimits(
    # (a{900}b){900} costs 6 MB and 0.2 s with these, and five times the memory with twice as much.
    initial_lexer_fuel=100_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_lexer_states=50_000,  # 1-2 kB each
    max_grammar_size=200_000,
    verbose_errors=False,
)


class _Vocabulary:
    """Our tokenizer as llguidance wants to see it."""

    bos_token_id: int | None = None

    def __init__(self, tokenizer: Tokenizer, special_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(special_ids)

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text if isinstance(text, str) else text.decode()
        return self._tokenizer.encode(whole, add_special_tokens=False)


def build_vocabulary(tokenizer: Tokenizer) -> LLTokenizer:
    """The model's tokens for llguidance, in a fraction of a second. Raises `RequestRefused` where there is no end."""
    if not tokenizer.eos_token_ids:
        raise RequestRefused("structured output is not served: this model has no end-of-sequence token")
    wrapped = TokenizerWrapper(_Vocabulary(tokenizer, tokenizer.special_token_ids))
    return LLTokenizer(wrapped, n_vocab=tokenizer.vocab_size, eos_token=list(tokenizer.eos_token_ids))


def compile_spec(vocabulary: LLTokenizer, spec: Spec) -> LLMatcher:
    """A matcher that has taken no token yet. Raises `RequestRefused` with the reason.

    The first mask is part of it: it is often the dearest, and shows a specification that nothing fits.
    """
    check_numbers(spec)
    return with_deep_stack(lambda: _compile(vocabulary, spec))


def _compile(vocabulary: LLTokenizer, spec: Spec) -> LLMatcher:
    matcher = LLMatcher(vocabulary, _grammar(spec), log_level=0, limits=LIMITS)
    if matcher.is_error():
        raise RequestRefused(explain(matcher.get_error()))
    probe = matcher.deep_copy()
    probe.compute_bitmask()
    if probe.is_error():
        raise RequestRefused("nothing can fit it, or it is too costly to follow")
    return matcher


def _grammar(spec: Spec) -> str:
    if spec.kind is Kind.JSON_SCHEMA:
        return LLMatcher.grammar_from_json_schema(spec.text)
    if spec.kind is Kind.REGEX:
        return LLMatcher.grammar_from_regex(spec.text)
    return json.dumps({"grammars": [{"lark_grammar": spec.text}]})


def explain(error: str) -> str:
    """The library's error as one short line: its beginning, and the sentence that a drawing of the place ends with."""
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()] or ["it does not compile"]
    reason = next((line for line in lines[1:] if line.startswith("error: ")), "").removeprefix("error: ")
    return f"{lines[0][:200]} {reason[:200]}".strip()
