"""The Secret with the signing keys on the fake cluster: made once, rotated, raced for, unreadable, unavailable."""

from __future__ import annotations

import base64
from datetime import timedelta
from itertools import count

import pytest
from prometheus_client import CollectorRegistry

from pagefleet_engine.contract.tokens import parse_public_keys, sign, verify
from pagefleet_operator.errors import AlreadyExistsError, ApiError, UnreachableError
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.resources import SECRET
from pagefleet_operator.signing_keys import SigningKeys
from pagefleet_operator.testing import FakeCluster, Write

NAME = Key("pagefleet", "pagefleet-signing-keys")
CREATED = [Write("create", "secrets", NAME.name)]
PATCHED = [Write("patch", "secrets", NAME.name)]


@pytest.fixture
def cluster():
    return FakeCluster()


@pytest.fixture
def metrics():
    return OperatorMetrics(CollectorRegistry())


def replica(cluster, metrics, first=1):
    """One operator; replicas of one test make different seeds."""
    seeds = count(first)
    return SigningKeys(
        cluster,
        NAME,
        metrics=metrics,
        clock=lambda: cluster.now,
        make_seed=lambda: bytes([next(seeds)]) * 32,
        max_age=timedelta(days=30),
    )


async def lines(cluster):
    raw = await cluster.get(SECRET, *NAME)
    return base64.b64decode(raw["data"]["keys"]).decode().splitlines()


async def store(cluster, data):
    head = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": NAME.namespace, "name": NAME.name}}
    await cluster.create(SECRET, head | ({} if data is None else {"data": data}))
    cluster.take_writes()


def can_sign(keys):
    token = sign(keys.signer(), audience="uid", now_s=1000)
    verify(token, parse_public_keys(keys.public_text()), audience="uid", now_s=1000)
    return True


async def test_the_first_operator_makes_a_key_and_the_next_one_uses_it(cluster, metrics):
    keys, other = replica(cluster, metrics), replica(cluster, metrics, first=100)
    assert (keys.public_text(), keys.signer()) == (None, None)
    await keys.refresh()
    assert cluster.take_writes() == CREATED
    await other.refresh()
    await keys.refresh()
    assert cluster.take_writes() == []
    assert keys.public_text() == other.public_text()
    assert keys.signer().private_bytes_raw() == other.signer().private_bytes_raw()
    assert can_sign(keys)
    assert keys.signer() is keys.signer()


async def test_an_empty_secret_of_a_chart_s_is_filled(cluster, metrics):
    await store(cluster, None)
    keys = replica(cluster, metrics)
    await keys.refresh()
    assert cluster.take_writes() == PATCHED
    assert can_sign(keys)


async def test_of_two_that_make_it_at_once_one_wins(cluster, metrics):
    keys, faster = replica(cluster, metrics), replica(cluster, metrics, first=100)

    async def create(*_):
        del cluster.create
        await faster.refresh()
        raise AlreadyExistsError(409, "AlreadyExists", "there")

    cluster.create = create
    await keys.refresh()
    assert keys.public_text() == faster.public_text()
    assert cluster.take_writes() == CREATED


async def test_a_key_is_rotated_with_an_overlap(cluster, metrics):
    keys = replica(cluster, metrics)
    await keys.refresh()
    first, only = keys.signer(), keys.public_text()
    cluster.now += timedelta(days=30)
    await keys.refresh()
    both = keys.public_text()
    assert both.startswith(only)
    assert len(parse_public_keys(both)) == 2
    assert keys.signer() is first
    cluster.now += timedelta(minutes=5)
    assert keys.signer() is not first
    assert can_sign(keys)
    cluster.now += timedelta(minutes=15)
    await keys.refresh()
    assert both.endswith(keys.public_text())
    assert len(await lines(cluster)) == 1
    assert can_sign(keys)


async def test_an_annotation_asks_for_a_new_key_once(cluster, metrics):
    keys = replica(cluster, metrics)
    await keys.refresh()
    await cluster.patch(SECRET, *NAME, {"metadata": {"annotations": {"pagefleet.io/rotate-keys": "now"}}})
    await keys.refresh()
    await keys.refresh()
    assert len(await lines(cluster)) == 2
    assert (await cluster.get(SECRET, *NAME))["metadata"]["annotations"] == {}


async def test_a_change_that_crosses_another_one_gives_way(cluster, metrics):
    keys, other = replica(cluster, metrics), replica(cluster, metrics, first=100)
    await keys.refresh()
    cluster.now += timedelta(days=30)

    async def get(*words):
        del cluster.get
        seen = await cluster.get(*words)
        await other.refresh()
        return seen

    cluster.get = get
    await keys.refresh()
    assert keys.public_text() == other.public_text()
    assert len(await lines(cluster)) == 2


# sentence → data of the Secret
RUBBISH = {
    "another entry": {"tls.key": "AAAA"},
    "no base64": {"keys": "?"},
    "no keys inside": {"keys": base64.b64encode(b"hello\n").decode()},
    "nothing inside": {"keys": ""},
}


@pytest.mark.parametrize("data", RUBBISH.values(), ids=RUBBISH.keys())
async def test_a_secret_that_cannot_be_read_is_told_once_and_left_alone(cluster, metrics, data, caplog):
    await store(cluster, data)
    keys = replica(cluster, metrics)
    await keys.refresh()
    await keys.refresh()
    assert (keys.public_text(), keys.signer()) == (None, None)
    assert cluster.take_writes() == []
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("secret pagefleet/pagefleet-signing-keys: ")
    assert line.endswith("; until it is mended, or emptied for new keys, nothing is asked of engines")
    assert metrics.signing_key_errors.labels(problem="unreadable")._value.get() == 2
    assert metrics.signing_keys._value.get() == 0
    await cluster.patch(SECRET, *NAME, {"data": dict.fromkeys(data)})
    await keys.refresh()
    assert can_sign(keys)
    assert metrics.signing_keys._value.get() == 1


OUTAGES = {
    "no answer": UnreachableError("GET /api: no answer"),
    "no right": ApiError(403, "Forbidden", "secrets is forbidden"),
}


@pytest.mark.parametrize("error", OUTAGES.values(), ids=OUTAGES.keys())
async def test_an_outage_changes_no_key(cluster, metrics, error):
    keys = replica(cluster, metrics)
    cluster.fail_next("get", "secrets", error)
    await keys.refresh()
    assert keys.public_text() is None
    await keys.refresh()
    known = keys.public_text()
    cluster.fail_next("get", "secrets", error)
    await keys.refresh()
    assert keys.public_text() == known
    assert metrics.signing_key_errors.labels(problem="unavailable")._value.get() == 2


async def test_a_deleted_secret_means_new_keys_at_once(cluster, metrics):
    keys = replica(cluster, metrics)
    await keys.refresh()
    before = keys.public_text()
    raw = await cluster.get(SECRET, *NAME)
    await cluster.delete(SECRET, *NAME, uid=raw["metadata"]["uid"])
    await keys.refresh()
    assert keys.public_text() not in (None, before)
    assert can_sign(keys)


class EndOfTest(BaseException):
    """Ends the endless loop."""


async def test_it_looks_more_often_while_it_has_no_keys(cluster, metrics):
    waits = []

    async def sleep(seconds):
        waits.append(seconds)
        if len(waits) == 2:
            raise EndOfTest

    keys = SigningKeys(
        cluster,
        NAME,
        metrics=metrics,
        clock=lambda: cluster.now,
        make_seed=lambda: bytes(32),
        max_age=timedelta(days=30),
        sleep=sleep,
    )
    cluster.fail_next("get", "secrets", UnreachableError("no answer"))
    with pytest.raises(EndOfTest):
        await keys.run()
    assert waits == [5.0, 30.0]
