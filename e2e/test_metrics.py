"""What Prometheus' own checker says of the metrics: nothing but that vLLM's names, and ours after them, have colons."""

from __future__ import annotations

import subprocess

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from e2e.cluster.folders import user_folders
from e2e.cluster.modules import PROMLINT
from e2e.cluster.tools import build_tools
from pagefleet_engine.server.testing import FakeEngine, running_server, say
from pagefleet_operator.metrics import OperatorMetrics

pytestmark = pytest.mark.e2e

FORM = {"response_format": {"type": "json_object"}}


@pytest.fixture(scope="module")
def check():
    """Metrics in the text format -> the checker's sentences."""
    program = build_tools(user_folders(), [PROMLINT.name], print)[PROMLINT.name]

    def run(text: bytes) -> list[str]:
        done = subprocess.run([program], input=text, capture_output=True, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode().splitlines()

    return run


def test_the_checker_sees_a_counter_without_its_suffix(check):
    text = b"# HELP pages Pages.\n# TYPE pages counter\npages 1\n"
    assert check(text) == ['pages counter metrics should have "_total" suffix']


async def test_engine(check):
    async with running_server(FakeEngine(say("{}"))) as server, httpx.AsyncClient(base_url=server.url) as client:
        for body in ({}, FORM, {"n": 2}, {"max_tokens": 0}):
            await client.post("/v1/completions", json={"prompt": "a"} | body)
        text = (await client.get("/metrics")).content
    assert b'vllm:generation_tokens_total{model_name="fake"}' in text
    assert [line for line in check(text) if not line.endswith("metric names should not contain ':'")] == []


def test_operator(check):
    registry = CollectorRegistry()
    OperatorMetrics(registry)
    assert check(generate_latest(registry)) == []
