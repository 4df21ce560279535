"""The operator's client against the engine's real ports on loopback."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.control import POD_UID_VARIABLE, EngineState, RuntimeChange
from pagefleet_engine.contract.metrics import REMEDY_METRICS, Metric
from pagefleet_engine.contract.tokens import render_public_key
from pagefleet_engine.server.drain import StopSignals
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.serve import serve
from pagefleet_engine.server.testing import HOST, FakeEngine, free_port, say, until_listening
from pagefleet_operator.engine_client import EngineClient, Ports
from pagefleet_operator.engines import EnginePod
from pagefleet_operator.errors import EngineRefusedError, GenerationConflictError, NoSigningKeyError
from pagefleet_operator.fake_engines import FakeEngines
from pagefleet_operator.remedies.samples import Invalid, Missing
from pagefleet_operator.remedies.scrape import ASKED_FOR, parse_metrics

POD = EnginePod(name="smollm2-0", uid="1b9d6bcd", ip=HOST)
OTHER = EnginePod(name="smollm2-1", uid="another", ip=HOST)


class Keys:
    """What signs, as a value that a test sets."""

    def __init__(self) -> None:
        self.key: Ed25519PrivateKey | None = Ed25519PrivateKey.generate()

    def signer(self) -> Ed25519PrivateKey | None:
        return self.key


@pytest.fixture
def keys():
    return Keys()


@pytest.fixture
async def ports(tmp_path, keys):
    """A running engine process with both ports."""
    path = tmp_path / "keys"
    path.write_text(render_public_key(keys.key.public_key()))
    ports = Ports(api=free_port(), control=free_port())
    arguments = EngineArguments(
        model="none",
        host=HOST,
        port=ports.api,
        control_port=ports.control,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        control_key_file=str(path),
        drain_grace=3600,
    )

    async def load(_arguments):
        return FakeEngine(say("hello"), max_running=8)

    signals = StopSignals()
    environ = {POD_UID_VARIABLE: POD.uid}
    ending = asyncio.create_task(serve(arguments, load=load, limits=Limits(), signals=signals, environ=environ))
    await until_listening(ports.api)
    await until_listening(ports.control)
    async with httpx.AsyncClient() as http:
        while (await http.get(f"http://{HOST}:{ports.api}/ready")).status_code != 200:
            pass
    yield ports
    signals.received()
    signals.received()
    await ending


@pytest.fixture
async def client(keys, ports):
    async with EngineClient(keys, time.time, ports=ports) as client:
        yield client


async def test_metrics_are_the_ones_that_remedies_need(client):
    families = {family.name for family in text_string_to_metric_families(await client.read_metrics(POD))}
    wanted = {name.removesuffix("_total") for name in REMEDY_METRICS}
    known = {name.removesuffix("_total") for name in Metric}
    assert families == wanted & known
    assert "vllm:num_requests_waiting" in families


async def test_a_scrape_holds_all_that_is_read_of_it(client):
    readings = parse_metrics(await client.read_metrics(POD))
    assert set(ASKED_FOR) <= set(REMEDY_METRICS)
    families = [*readings.gauges.items(), *readings.counters.items(), *readings.histograms.items()]
    assert [name for name, sample in families if isinstance(sample, Missing | Invalid)] == []


async def tell_a_story(engines):
    """What the operator relies on, of the real engine as of the fake one."""
    start = await engines.read_config(POD)
    assert (start.generation, start.cap) == (1, 8)
    answer = await engines.change_config(POD, RuntimeChange(expected_generation=1, cap=3))
    changed = start.model_copy(update={"generation": 2, "cap": 3})
    assert (answer.old, answer.new, answer.running) == (start, changed, 0)
    again = await engines.change_config(POD, RuntimeChange(expected_generation=1, cap=3))
    assert (again.old, again.new) == (changed, changed)
    with pytest.raises(GenerationConflictError, match=r"^pod smollm2-0: "):
        await engines.change_config(POD, RuntimeChange(expected_generation=1, cap=4))
    for wrong in ({"cap": 9}, {"cap": 0}, {"max_model_len": 15}, {"max_model_len": 513}):
        with pytest.raises(EngineRefusedError, match=r"^pod smollm2-0: .*: must be ") as refused:
            await engines.change_config(POD, RuntimeChange(expected_generation=2, **wrong))
        assert refused.value.status == 400
    renamed = (start.routes[0].model_copy(update={"model": "another"}),)
    with pytest.raises(EngineRefusedError, match=r"^pod smollm2-0: .*routes"):
        await engines.change_config(POD, RuntimeChange(expected_generation=2, routes=renamed))
    assert await engines.read_config(POD) == changed
    idle = EngineState(phase="ready", in_flight=0, running=0, waiting=0, swapped=0)
    assert await engines.read_state(POD) == idle
    for refuse, phase in ((False, "draining"), (True, "refusing"), (False, "refusing")):
        assert (await engines.drain(POD, refuse=refuse)).phase == phase
    assert await engines.cancel_drain(POD) == idle


async def test_the_real_engine_does_what_the_operator_relies_on(client):
    await tell_a_story(client)


async def test_the_fake_engine_does_the_same():
    engines = FakeEngines()
    engines.add(POD.uid, cap=8, capacity=8, max_model_len=512)
    await tell_a_story(engines)


async def test_a_conflict_is_told_in_the_engine_s_words(client):
    await client.change_config(POD, RuntimeChange(expected_generation=1, cap=3))
    with pytest.raises(GenerationConflictError) as refused:
        await client.change_config(POD, RuntimeChange(expected_generation=1, cap=4))
    assert str(refused.value).startswith("pod smollm2-0: PATCH :")
    assert str(refused.value).endswith(
        "/v1/runtime_config: 409: expected_generation: 1: the configuration is at generation 2; "
        "read it again before changing it"
    )


async def test_a_token_is_for_one_pod(client):
    with pytest.raises(EngineRefusedError, match=r"^pod smollm2-1: .* 401: this needs a token") as refused:
        await client.read_state(OTHER)
    assert refused.value.status == 401


async def test_another_key_is_refused_and_the_right_one_used_again(client, keys):
    right, keys.key = keys.key, Ed25519PrivateKey.generate()
    with pytest.raises(EngineRefusedError, match="401"):
        await client.read_state(POD)
    keys.key = right
    assert (await client.read_state(POD)).phase == "ready"


async def test_without_a_key_nobody_is_asked_but_for_metrics(client, keys):
    keys.key = None
    with pytest.raises(NoSigningKeyError, match=r"^pod smollm2-0: was not asked: the operator has no signing key$"):
        await client.read_state(POD)
    assert await client.read_metrics(POD)
