"""The control API over real sockets: changes, conflicts, refusals, drain, credentials."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pagefleet_engine.api import RuntimeSettings
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.control import POD_UID_VARIABLE, RouteConfig, RuntimeChange, RuntimeConfig, RuntimeStart
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.contract.tokens import render_public_key, sign
from pagefleet_engine.errors import EngineDead, StartupError
from pagefleet_engine.server.control.runtime import next_config
from pagefleet_engine.server.drain import StopSignals
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.serve import Ending, serve
from pagefleet_engine.server.testing import HOST, FakeEngine, free_port, say, until_listening

KEY = Ed25519PrivateKey.generate()
POD = "1b9d6bcd"
ROUTE = RouteConfig(name="default", model="fake", precision=Precision.BF16)
START = {
    "generation": 1,
    "cap": 8,
    "max_model_len": 512,
    "max_num_batched_tokens": 64,
    "routes": [ROUTE.model_dump(mode="json")],
}
CONFIG = "/v1/runtime_config"


class Running:
    """An engine process with both ports, and a client for each."""

    def __init__(self, key_file, gate=None, **arguments) -> None:
        self.engine = FakeEngine(say("hello"), gate=gate, max_running=8)
        self.signals = StopSignals()
        self.arguments = EngineArguments(
            model="none",
            host=HOST,
            port=free_port(),
            control_port=free_port(),
            max_num_seqs=8,
            max_num_batched_tokens=64,
            control_key_file=str(key_file),
            drain_grace=3600,
            **arguments,
        )
        load, environ = self._load, {POD_UID_VARIABLE: POD}
        self.ending = asyncio.create_task(
            serve(self.arguments, load=load, limits=Limits(), signals=self.signals, environ=environ)
        )
        token = sign(KEY, audience=POD, now_s=int(time.time()))
        headers = {"authorization": f"Bearer {token}"}
        self.control = httpx.AsyncClient(base_url=f"http://{HOST}:{self.arguments.control_port}", headers=headers)
        self.public = httpx.AsyncClient(base_url=f"http://{HOST}:{self.arguments.port}")

    async def _load(self, _arguments):
        return self.engine

    async def started(self) -> None:
        await until_listening(self.arguments.control_port)
        while (await self.public.get("/ready")).status_code != 200:
            pass

    async def stop(self) -> Ending:
        self.signals.received()
        self.signals.received()
        await self.control.aclose()
        await self.public.aclose()
        return await self.ending


@pytest.fixture
def key_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(render_public_key(KEY.public_key()))
    return path


@pytest.fixture
async def running(key_file):
    running = Running(key_file, gate=asyncio.Semaphore(0))
    await running.started()
    yield running
    await running.stop()


async def test_a_change_takes_effect_and_counts(running):
    assert (await running.control.get(CONFIG)).json() == START
    reply = await running.control.patch(CONFIG, json={"expected_generation": 1, "cap": 3, "max_model_len": 100})
    new = START | {"generation": 2, "cap": 3, "max_model_len": 100}
    assert reply.json() == {"old": START, "new": new, "running": 0}
    assert running.engine.settings == [RuntimeSettings(cap=3, max_model_len=100, max_num_batched_tokens=64)]
    assert (await running.control.get(CONFIG)).json() == new
    assert (await running.public.get("/v1/models")).json()["data"][0]["max_model_len"] == 100


async def test_the_same_change_again_changes_nothing(running):
    change = {"expected_generation": 1, "cap": 3}
    for _ in range(3):
        reply = await running.control.patch(CONFIG, json=change)
        assert reply.json()["new"]["generation"] == 2
    assert len(running.engine.settings) == 1


async def test_of_two_changes_at_once_one_conflicts(running):
    changes = [{"expected_generation": 1, "cap": cap} for cap in (2, 3)]
    replies = await asyncio.gather(*(running.control.patch(CONFIG, json=change) for change in changes))
    assert sorted(reply.status_code for reply in replies) == [200, 409]
    refused = next(reply for reply in replies if reply.status_code == 409)
    assert refused.json()["error"] == {
        "message": "expected_generation: 1: the configuration is at generation 2; read it again before changing it",
        "type": "invalid_request_error",
        "param": "expected_generation",
        "code": "generation_conflict",
    }


# sentence → (body, field, message)
WRONG = {
    "no generation": ({"cap": 2}, "expected_generation", "expected_generation: is required"),
    "a cap of 0": ({"expected_generation": 1, "cap": 0}, "cap", "cap: 0: must be 1 to 8"),
    "a cap of -1": ({"expected_generation": 1, "cap": -1}, "cap", "cap: -1: must be 1 to 8"),
    "a cap of 10^9": ({"expected_generation": 1, "cap": 10**9}, "cap", "cap: 1000000000: must be 1 to 8"),
    "a cap above the capacity beside a good value": (
        {"expected_generation": 1, "max_model_len": 100, "cap": 9},
        "cap",
        "cap: 9: must be 1 to 8",
    ),
    "a float": ({"expected_generation": 1, "cap": 2.5}, "cap", "cap: input should be a valid integer"),
    "true": ({"expected_generation": 1, "cap": True}, "cap", "cap: input should be a valid integer"),
    "an unknown field": ({"expected_generation": 1, "capp": 2}, "capp", "capp: extra inputs are not permitted"),
    "a context of 15": (
        {"expected_generation": 1, "max_model_len": 15},
        "max_model_len",
        "max_model_len: 15: must be 16 to 512",
    ),
    "routes without one": (
        {"expected_generation": 1, "cap": 2, "routes": []},
        "routes",
        "routes: tuple should have at least 1 item after validation, not 0",
    ),
    "another alias": (
        {"expected_generation": 1, "cap": 2, "routes": [START["routes"][0] | {"model": "else"}]},
        "routes.0.model",
        "routes.0.model: must stay 'fake': clients of the route send it",
    ),
    "a route more": (
        {"expected_generation": 1, "routes": [START["routes"][0], START["routes"][0] | {"name": "a", "model": "a"}]},
        "routes.1.name",
        "routes.1.name: 'a' is no route of this engine: start a new one",
    ),
    "a share above 1": (
        {"expected_generation": 1, "routes": [START["routes"][0] | {"control_share": 1.5}]},
        "routes.0.control_share",
        "routes.0.control_share: input should be less than or equal to 1",
    ),
    "a precision that nobody knows": (
        {"expected_generation": 1, "routes": [START["routes"][0] | {"precision": "fp4"}]},
        "routes.0.precision",
        "routes.0.precision: input should be 'bf16', 'fp8_e4m3', 'fp8_e5m2', 'int8' or 'int4'",
    ),
    "a budget of 65": (
        {"expected_generation": 1, "max_num_batched_tokens": 65},
        "max_num_batched_tokens",
        "max_num_batched_tokens: 65: must be 1 to 64",
    ),
}


async def test_wrong_changes_change_nothing(running):
    for body, param, message in WRONG.values():
        reply = await running.control.patch(CONFIG, json=body)
        error = reply.json()["error"]
        assert (reply.status_code, error["param"], error["message"]) == (400, param, message)
    assert running.engine.settings == []
    assert (await running.control.get(CONFIG)).json() == START


async def test_nobody_without_a_token_for_this_pod(running):
    now = int(time.time())
    wrong = ["x", "a.b.c", sign(KEY, audience="other", now_s=now), sign(KEY, audience=POD, now_s=now - 1_000)]
    for path in (CONFIG, "/v1/state", "/health", "/metrics", "/openapi.json", "/nope"):
        for token in wrong:
            reply = await running.control.get(path, headers={"authorization": f"Bearer {token}"})
            assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_token")


async def test_the_public_port_has_no_control(running):
    token = running.control.headers["authorization"]
    for method, path in (("GET", CONFIG), ("PATCH", CONFIG), ("POST", "/v1/drain"), ("GET", "/v1/state")):
        reply = await running.public.request(method, path, headers={"authorization": token}, json={})
        assert reply.status_code == 404


async def test_a_drain_can_be_stepped_through_and_cancelled(running):
    asking = asyncio.create_task(running.public.post("/v1/completions", json={"prompt": "a"}))
    await running.engine.until(lambda: len(running.engine.running) == 1)
    state = {"phase": "draining", "in_flight": 1, "running": 1, "waiting": 0, "swapped": 0}
    assert (await running.control.post("/v1/drain", json={})).json() == state
    assert (await running.public.get("/ready")).status_code == 503
    assert (await running.control.post("/v1/drain", json={"refuse": True})).json() == state | {"phase": "refusing"}
    assert (await running.public.post("/v1/completions", json={"prompt": "a"})).status_code == 503
    assert (await running.control.get("/v1/state")).json() == state | {"phase": "refusing"}
    assert (await running.control.delete("/v1/drain")).json() == state | {"phase": "ready"}
    assert (await running.public.get("/ready")).status_code == 200
    asking.cancel()


async def test_a_drain_that_ends_the_process_stays(key_file):
    running = Running(key_file)
    await running.started()
    running.signals.received()
    while (await running.control.get("/v1/state")).json()["phase"] != "draining":
        pass
    reply = await running.control.delete("/v1/drain")
    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "ending")
    assert (await running.stop()).exit_code == 0


async def test_without_a_pod_s_name_there_is_no_control(key_file):
    arguments = EngineArguments(model="none", host=HOST, control_key_file=str(key_file))
    with pytest.raises(StartupError, match="set PAGEFLEET_POD_UID to the pod's UID"):
        await serve(arguments, load=None, limits=Limits(), signals=StopSignals(), environ={})


def test_a_change_decided_on_an_older_generation_conflicts_only_if_it_asks_for_something():
    current = RuntimeConfig(generation=5, cap=4, max_model_len=512, max_num_batched_tokens=64, routes=(ROUTE,))
    assert next_config(current, RuntimeChange(expected_generation=2, cap=4)) is current
    assert next_config(current, RuntimeChange(expected_generation=5, cap=3)).generation == 6
    with pytest.raises(ApiError):
        next_config(current, RuntimeChange(expected_generation=4, cap=3))


TOOLS = RouteConfig(name="tools", model="fake-tools", precision=Precision.FP8_E4M3, control_share=0.5)


async def test_a_restarted_engine_goes_on_with_what_was_changed(key_file, tmp_path):
    start = tmp_path / "start.json"
    start.write_text(RuntimeStart(cap=6, routes=(ROUTE, TOOLS)).model_dump_json(exclude_none=True) + "\n")
    files = {"runtime_config_file": str(start), "state_dir": str(tmp_path / "state")}
    fallback = TOOLS.model_copy(update={"precision": Precision.BF16}).model_dump(mode="json")
    first = Running(key_file, **files)
    await first.started()
    before = (await first.control.get(CONFIG)).json()
    assert before == START | {"cap": 6, "routes": [ROUTE.model_dump(mode="json"), TOOLS.model_dump(mode="json")]}
    assert first.engine.settings == [RuntimeSettings(cap=6, max_model_len=512, max_num_batched_tokens=64)]
    change = {"expected_generation": 1, "cap": 5, "routes": [before["routes"][0], fallback]}
    new = (await first.control.patch(CONFIG, json=change)).json()["new"]
    assert new == before | {"generation": 2, "cap": 5, "routes": [before["routes"][0], fallback]}
    assert await precisions_of_two(first) == [Precision.BF16, Precision.BF16]
    await first.stop()
    second = Running(key_file, **files)
    await second.started()
    assert (await second.control.get(CONFIG)).json() == new
    assert second.engine.settings == [RuntimeSettings(cap=5, max_model_len=512, max_num_batched_tokens=64)]
    assert await precisions_of_two(second) == [Precision.BF16, Precision.BF16]
    await second.stop()


async def precisions_of_two(running):
    for _ in range(2):
        await running.public.post("/v1/completions", json={"model": "fake-tools", "prompt": "a"})
    return [options.precision for options in running.engine.options[-2:]]


async def test_requests_that_run_end_as_they_began(key_file, tmp_path):
    start = tmp_path / "start.json"
    tools = TOOLS.model_copy(update={"control_share": 0.0})
    start.write_text(RuntimeStart(routes=(ROUTE, tools)).model_dump_json(exclude_none=True))
    gate = asyncio.Semaphore(0)
    running = Running(key_file, gate=gate, runtime_config_file=str(start))
    await running.started()
    asking = asyncio.create_task(running.public.post("/v1/completions", json={"model": "fake-tools", "prompt": "a"}))
    await running.engine.until(lambda: len(running.engine.running) == 1)
    change = [ROUTE.model_dump(mode="json"), tools.model_dump(mode="json") | {"precision": "int4"}]
    reply = await running.control.patch(CONFIG, json={"expected_generation": 1, "routes": change})
    assert (reply.status_code, reply.json()["running"]) == (200, 1)
    for _ in range(20):
        gate.release()
    assert (await asking).status_code == 200
    await running.public.post("/v1/completions", json={"model": "fake-tools", "prompt": "a"})
    assert [options.precision for options in running.engine.options] == [Precision.FP8_E4M3, Precision.INT4]
    await running.stop()


async def test_a_start_file_that_asks_for_too_much_ends_the_process(key_file, tmp_path):
    start = tmp_path / "start.json"
    start.write_text('{"max_model_len": 513}')
    running = Running(key_file, runtime_config_file=str(start))
    with pytest.raises(StartupError, match=r"^--runtime-config-file .*: max_model_len: 513: must be 16 to 512$"):
        await running.ending
    await running.control.aclose()
    await running.public.aclose()


async def test_an_engine_that_has_stopped_cannot_be_changed(running):
    async def stopped(_settings):
        raise EngineDead("the step loop died")

    running.engine.configure = stopped
    reply = await running.control.patch(CONFIG, json={"expected_generation": 1, "cap": 3})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_stopped")
    assert (await running.control.get(CONFIG)).json() == START
