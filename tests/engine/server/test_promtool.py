"""What Prometheus' own checker says of the metrics: nothing but that vLLM's names, and ours after them, have colons."""

from __future__ import annotations

import asyncio
import shutil

import httpx
import pytest

from pagefleet_engine.server.testing import FakeEngine, running_server, say

PROMTOOL = shutil.which("promtool")
FORM = {"response_format": {"type": "json_object"}}


@pytest.mark.skipif(PROMTOOL is None, reason="needs promtool, which Debian's package prometheus has")
async def test_metrics_are_as_prometheus_wants_them():
    async with running_server(FakeEngine(say("{}"))) as server, httpx.AsyncClient(base_url=server.url) as client:
        for body in ({}, FORM, {"n": 2}, {"max_tokens": 0}):
            await client.post("/v1/completions", json={"prompt": "a"} | body)
        text = (await client.get("/metrics")).content
    process = await asyncio.create_subprocess_exec(
        PROMTOOL,
        "check",
        "metrics",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(text)
    lines = said.decode().splitlines()
    assert [line for line in lines if not line.endswith("metric names should not contain ':'")] == []
    assert process.returncode in (0, 3)  # 3: it has something to say
