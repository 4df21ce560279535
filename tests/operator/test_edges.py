"""Small edges: settings, logs, health, and what importing the operator loads."""

import json
import logging
import subprocess
import sys

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from pagefleet_operator.health import Health, serve_health
from pagefleet_operator.logs import JsonFormatter
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.settings import OperatorSettings, parse_settings


def test_settings_come_from_flags_and_the_pods_namespace():
    argv = ["--namespace", "a", "--namespace", "b", "--namespace", "a", "--resync-seconds", "10"]
    own = {"lease_namespace": "system", "signing_secret_namespace": "system"}
    want = OperatorSettings(namespaces=("a", "b"), resync_s=10, **own)
    assert parse_settings(argv, {"POD_NAMESPACE": "system"}) == want
    assert parse_settings([], {}) == OperatorSettings()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--resync-seconds", "0"], "--resync-seconds 0: use 1 to 3600"),
        (["--health-port", "70000"], "--health-port 70000: use"),
        (["--workers", "0"], "--workers 0: use 1 to 256"),
        (["--namespace", ""], "must not be empty"),
        (["--signing-secret-name", ""], "--signing-secret-name must not be empty"),
        (["--signing-key-days", "0"], "--signing-key-days 0: use 1 to 3650"),
    ],
)
def test_settings_out_of_range_name_the_flag(argv, message):
    with pytest.raises(ValueError, match=message):
        parse_settings(argv, {})


def test_a_json_log_line_is_one_object():
    record = logging.LogRecord("pagefleet_operator.x", logging.INFO, "x.py", 1, "%s: done", ("a/b",), None)
    entry = json.loads(JsonFormatter().format(record))
    assert (entry["level"], entry["logger"], entry["message"]) == ("info", "pagefleet_operator.x", "a/b: done")


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
async def health_server():
    clock = Clock()
    health = Health(monotonic=clock, max_silence_s=100)
    runner = await serve_health(health, OperatorMetrics(CollectorRegistry()).registry, 0)
    port = next(address[1] for address in runner.addresses if len(address) == 2)  # IPv6 has a port of its own
    yield clock, health, f"http://127.0.0.1:{port}"
    await runner.cleanup()


async def fetch(url):
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def test_health_follows_the_heartbeat_and_readiness_the_api_server(health_server):
    clock, health, url = health_server
    assert await fetch(f"{url}/healthz") == (200, "ok\n")
    assert await fetch(f"{url}/readyz") == (503, "the API server has not answered yet\n")
    health.answered()
    assert await fetch(f"{url}/readyz") == (200, "ok\n")
    clock.seconds = 101
    assert await fetch(f"{url}/healthz") == (503, "no heartbeat for 101 s\n")
    assert await fetch(f"{url}/readyz") == (503, "no answer of the API server for 101 s\n")
    health.beat()
    assert await fetch(f"{url}/healthz") == (200, "ok\n")


async def test_metrics_are_exported(health_server):
    _, _, url = health_server
    status, text = await fetch(f"{url}/metrics")
    assert status == 200
    assert 'pagefleet_operator_build_info{version="' in text


def test_importing_the_operator_loads_no_torch():
    program = (
        "import sys, pagefleet_operator.process, pagefleet_operator.testing\n"
        "print(sorted({'torch', 'triton', 'numpy', 'fastapi'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
