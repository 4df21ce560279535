"""The real engine over a tiny random model, for tests that need both sides real."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pagefleet_engine.api import Engine, ModelInfo
from pagefleet_engine.async_engine import AsyncEngine
from pagefleet_engine.testing import ByteTokenizer, tiny_core


@asynccontextmanager
async def running_tiny_engine(**scheduling: Any) -> AsyncIterator[Engine]:
    """`scheduling` goes into `tiny_core`."""
    info = ModelInfo(id="tiny", max_model_len=256, vocab_size=260, eos_token_ids=ByteTokenizer.eos_token_ids)
    engine = AsyncEngine(tiny_core(**scheduling), model_info=info, tokenizer=ByteTokenizer())
    try:
        yield engine
    finally:
        await engine.close()
