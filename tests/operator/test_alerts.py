"""Alertmanager's notifications: hints that wake services, once each, and never more than that."""

import io
import json
from contextlib import asynccontextmanager

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from pagefleet_operator.alert_server import MAX_BODY_BYTES, AlertServer, read_token, serve_alerts
from pagefleet_operator.alerts import (
    HINT_EVERY_S,
    MAX_REMEMBERED,
    MAX_WISHERS,
    WISH_S,
    AlertBook,
    AlertError,
    parse_notification,
)
from pagefleet_operator.labels import Key
from pagefleet_operator.main import main
from pagefleet_operator.metrics import OperatorMetrics

KEY = Key("models", "smollm2")
KNOWN = {KEY: None}
TOKEN = "0123456789abcdef"
LABELS = {"alertname": "QueueLong", "namespace": "models", "llmservice": "smollm2"}


def alert(status="firing", fingerprint="f1", started="2026-01-01T00:00:00Z", **labels):
    return {"status": status, "labels": LABELS | labels, "fingerprint": fingerprint, "startsAt": started}


def notification(*alerts):
    return json.dumps({"version": "4", "status": "firing", "alerts": list(alerts)}).encode()


def test_a_firing_alert_names_its_service_and_what_it_asks_for():
    [plain, scale] = parse_notification(notification(alert(), alert(pagefleet_remedy="scale")))
    assert (plain.name, plain.service, plain.wants_replica) == ("QueueLong", KEY, False)
    assert scale.wants_replica


IGNORED = {
    "an alert that is neither firing nor resolved": alert("suppressed"),
    "an alert without a namespace": alert(namespace=""),
    "an alert about no service": alert(llmservice=""),
}


@pytest.mark.parametrize("item", IGNORED.values(), ids=IGNORED.keys())
def test_ignored(item):
    assert parse_notification(notification(item)) == []


REFUSED = {
    "no JSON": (b"{", "the body is not JSON"),
    "too deep": (b"[" * 100_000, "the body is not JSON"),
    "no list of alerts": (b"{}", "alerts: must be a list, as in version 4 of Alertmanager's webhook"),
    "an alert that is none": (notification(3), "alerts[0].labels: must be an object of strings"),
    "a label that is a number": (notification(alert(pod=1)), "alerts[0].labels: must be an object of strings"),
    "too many": (notification(*[alert()] * 1001), "alerts: 1001 entries; at most 1000 are read"),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(body, message):
    with pytest.raises(AlertError) as error:
        parse_notification(body)
    assert str(error.value) == message


def hear(book, item, now_s, known=KNOWN):
    [heard] = parse_notification(notification(item))
    return book.hear(heard, known, now_s)


def test_a_repeat_of_a_firing_alert_is_no_news():
    book = AlertBook()
    assert hear(book, alert(), 0)
    assert not hear(book, alert(), HINT_EVERY_S + 1)
    assert hear(book, alert(started="2026-01-01T01:00:00Z"), HINT_EVERY_S + 2)


def test_a_service_gets_one_hint_a_minute_and_what_was_no_hint_may_come_again():
    book = AlertBook()
    assert hear(book, alert(fingerprint="a"), 0)
    assert not hear(book, alert(fingerprint="b"), HINT_EVERY_S - 1)
    assert hear(book, alert(fingerprint="b"), HINT_EVERY_S)


def test_an_unknown_service_costs_nothing():
    book = AlertBook()
    assert not hear(book, alert(pagefleet_remedy="scale"), 0, known={})
    assert book.wish(KEY, 0) is None
    assert hear(book, alert(), 1)


SCALE = alert(fingerprint="scale", alertname="ScaleUp", pagefleet_remedy="scale")


def test_a_wish_is_heard_behind_a_plain_alert_of_the_same_group():
    book = AlertBook()
    hear(book, alert(), 0)
    assert not hear(book, SCALE, 0)
    assert book.wish(KEY, 0) == "ScaleUp"


def test_a_wish_stands_until_it_is_fulfilled_and_its_repeats_are_no_news_then():
    book = AlertBook()
    hear(book, SCALE, 0)
    hear(book, SCALE | {"fingerprint": "of another pod"}, 0)
    assert [book.wish(KEY, 1), book.wish(KEY, 500)] == ["ScaleUp", "ScaleUp"]
    book.fulfil(KEY, 500)
    assert book.wish(KEY, 500) is None
    assert not hear(book, SCALE, 600)
    assert not hear(book, SCALE | {"fingerprint": "of another pod"}, 600)
    assert book.wish(KEY, 600) is None


def test_a_wish_ends_with_its_alert():
    book = AlertBook()
    hear(book, SCALE, 0)
    assert not hear(book, SCALE | {"status": "resolved"}, 10)
    assert book.wish(KEY, 10) is None


def test_a_wish_that_nothing_came_of_runs_out_and_may_be_made_again():
    book = AlertBook()
    hear(book, SCALE, 0)
    assert book.wish(KEY, WISH_S) is None
    assert hear(book, SCALE, WISH_S + 1)
    assert book.wish(KEY, WISH_S + 1) == "ScaleUp"


def test_wishers_are_bounded():
    book = AlertBook()
    for number in range(MAX_WISHERS + 10):
        hear(book, SCALE | {"fingerprint": str(number)}, 0)
    assert len(book._wishes[KEY]) == MAX_WISHERS


def test_what_is_remembered_is_bounded():
    book = AlertBook()
    for number in range(MAX_REMEMBERED + 10):
        hear(book, alert(fingerprint=str(number), llmservice=str(number)), 0, known={Key("models", str(number)): None})
    assert len(book._heard) == MAX_REMEMBERED
    hear(book, alert(fingerprint="next day"), 25 * 3600)
    assert len(book._heard) == 1


@asynccontextmanager
async def running(tmp_path, clock=lambda: 0.0):
    token_file = tmp_path / "token"
    token_file.write_text(f"{TOKEN}\n")
    woken = []
    server = AlertServer(
        token_file=token_file,
        book=AlertBook(),
        known=KNOWN,
        wake=woken.append,
        metrics=OperatorMetrics(CollectorRegistry()),
        monotonic=clock,
    )
    runner = await serve_alerts(server, 0)
    port = next(address[1] for address in runner.addresses if address[0] == "0.0.0.0")
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            yield session, woken, token_file
    finally:
        await runner.cleanup()


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


async def test_a_notification_wakes_the_service_once(tmp_path):
    async with running(tmp_path) as (session, woken, _):
        for services in (1, 0):
            reply = await session.post("/alerts", data=notification(alert()), headers=bearer(TOKEN))
            assert (reply.status, await reply.json()) == (200, {"services": services})
    assert woken == [KEY]


@pytest.mark.parametrize(
    "headers", [{}, bearer(""), bearer("wrong"), {"Authorization": f"Basic {TOKEN}"}, bearer("sécret")]
)
async def test_without_the_token_nobody_is_woken(tmp_path, headers):
    async with running(tmp_path) as (session, woken, _):
        reply = await session.post("/alerts", data=notification(alert()), headers=headers)
        assert reply.status == 401
    assert woken == []


async def test_a_rotated_token_counts_at_once_and_a_short_one_admits_nobody(tmp_path):
    async with running(tmp_path) as (session, _, token_file):
        token_file.write_text("another " + TOKEN)
        assert (await session.post("/alerts", data=notification(), headers=bearer(TOKEN))).status == 401
        assert (await session.post("/alerts", data=notification(), headers=bearer("another " + TOKEN))).status == 200
        for short in ("", "x"):
            token_file.write_text(short)
            assert (await session.post("/alerts", data=notification(), headers=bearer(short))).status == 401
        token_file.unlink()
        assert (await session.post("/alerts", data=notification(), headers=bearer("another " + TOKEN))).status == 401


async def test_a_flood_is_told_to_wait_and_a_large_body_is_refused(tmp_path):
    async with running(tmp_path) as (session, _, _):
        large = await session.post("/alerts", data=io.BytesIO(b" " * (MAX_BODY_BYTES + 1)), headers=bearer(TOKEN))
        assert large.status == 413
        replies = [await session.post("/alerts", data=notification(), headers=bearer(TOKEN)) for _ in range(25)]
    assert [reply.status for reply in replies].count(429) == 6
    assert replies[-1].headers["Retry-After"] == "10"


async def test_a_flood_of_strangers_is_told_to_wait_and_keeps_nobody_out(tmp_path):
    async with running(tmp_path) as (session, _, _):
        replies = [await session.post("/alerts", data=notification(), headers=bearer("wrong")) for _ in range(25)]
        assert [reply.status for reply in replies] == [401] * 20 + [429] * 5
        assert (await session.post("/alerts", data=notification(), headers=bearer(TOKEN))).status == 200


def test_a_token_that_could_be_guessed_or_is_not_there_is_refused_at_the_start(tmp_path, capsys):
    file = tmp_path / "token"
    file.write_text("x" * 15 + "\n")
    assert main(["--alert-token-file", str(file)]) == 2
    message = f"--alert-token-file {file}: the token has 15 bytes: use 16 random bytes or more"
    assert capsys.readouterr().err == f"pagefleet-operator: {message}\n"
    file.write_text(TOKEN)
    assert read_token(file) == TOKEN.encode()
    file.unlink()
    with pytest.raises(ValueError, match="No such file or directory: name a file with the token in it"):
        read_token(file)
