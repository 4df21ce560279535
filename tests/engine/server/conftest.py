"""A scripted engine behind the real HTTP server, and clients for it."""

from __future__ import annotations

import httpx
import openai
import pytest

from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.testing import FakeEngine, running_server, say


@pytest.fixture
async def hello():
    """A server whose model answers "Hello, world" to everything."""
    async with running_server(FakeEngine(say("Hello, world"))) as server:
        yield server


@pytest.fixture
async def client(hello):
    async with httpx.AsyncClient(base_url=hello.url) as client:
        yield client


@pytest.fixture
async def openai_client(hello):
    async with openai.AsyncOpenAI(base_url=f"{hello.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def small_limits() -> Limits:
    """Limits that a test can exceed quickly."""
    return Limits(
        header_timeout_s=0.3,
        body_bytes=4_096,
        body_pieces=50,
        body_timeout_s=0.3,
        write_timeout_s=0.3,
        prompts=4,
        messages=4,
        choices=6,
        n=4,
        stop_strings=2,
        stop_chars=8,
        stop_token_ids=2,
        logit_bias=2,
        logprobs=3,
        prompt_logprobs_total=100,
        chars_per_token=32,
    )
