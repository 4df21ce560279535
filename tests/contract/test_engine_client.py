"""The operator's client against the engine's real ports on loopback."""

from __future__ import annotations

import asyncio
import time

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
    ports, loaded = Ports(api=free_port(), control=free_port()), asyncio.Event()
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
        loaded.set()
        return FakeEngine(say("hello"), max_running=8)

    signals = StopSignals()
    environ = {POD_UID_VARIABLE: POD.uid}
    ending = asyncio.create_task(serve(arguments, load=load, limits=Limits(), signals=signals, environ=environ))
    await loaded.wait()
    await until_listening(ports.api)
    await until_listening(ports.control)
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


async def test_a_change_takes_effect_and_conflicts_with_an_older_one(client):
    start = await client.read_config(POD)
    assert (start.generation, start.cap) == (1, 8)
    answer = await client.change_config(POD, RuntimeChange(expected_generation=1, cap=3))
    assert (answer.old, answer.new, answer.running) == (
        start,
        start.model_copy(update={"generation": 2, "cap": 3}),
        0,
    )
    with pytest.raises(GenerationConflictError) as refused:
        await client.change_config(POD, RuntimeChange(expected_generation=1, cap=4))
    assert str(refused.value).startswith("pod smollm2-0: PATCH :")
    assert str(refused.value).endswith(
        "/v1/runtime_config: 409: expected_generation: 1: the configuration is at generation 2; "
        "read it again before changing it"
    )
    assert await client.read_config(POD) == answer.new


async def test_a_value_out_of_bounds_is_refused_in_the_engine_s_words(client):
    with pytest.raises(EngineRefusedError, match=r"400: cap: 9: must be 1 to 8$") as refused:
        await client.change_config(POD, RuntimeChange(expected_generation=1, cap=9))
    assert refused.value.status == 400


async def test_a_drain_is_begun_carried_on_and_cancelled(client):
    idle = EngineState(phase="ready", in_flight=0, running=0, waiting=0, swapped=0)
    assert await client.read_state(POD) == idle
    assert (await client.drain(POD, refuse=False)).phase == "draining"
    assert (await client.drain(POD, refuse=True)).phase == "refusing"
    assert await client.cancel_drain(POD) == idle


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
