"""Whether one string fits a `pattern` or a `format`, by llguidance over single bytes.

Its automata take time in proportion to the string, and mean exactly what a constrained answer was held to. Python's own
`re` can take for ever on a pattern such as `(a+)+$`.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Literal

from llguidance import LLMatcher, LLTokenizer

from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.structured.compiling import compile_spec
from pagefleet_engine.structured.spec import schema_spec


def string_fits(keyword: Literal["pattern", "format"], value: str, text: str) -> bool:
    """True as well for a pattern or format that llguidance does not know: it cannot be checked."""
    start = _start(keyword, value)
    if start is None:
        return True
    matcher = start.deep_copy()
    return matcher.consume_tokens(list(json.dumps(text, ensure_ascii=False).encode(errors="replace"))) and (
        matcher.is_accepting()
    )


@lru_cache(maxsize=1)
def _bytes() -> LLTokenizer:
    return LLTokenizer("byte")


@lru_cache(maxsize=256)
def _start(keyword: str, value: str) -> LLMatcher | None:
    try:
        return compile_spec(_bytes(), schema_spec({"type": "string", keyword: value}))
    except RequestRefused:
        return None
