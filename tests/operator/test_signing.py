"""The life of signing keys, in simulated time: when one comes, when it signs, when it goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.contract.tokens import parse_public_keys, sign, verify
from pagefleet_operator.signing import MAX_KEYS, KeyRing, new_key, next_ring, parse, render

START = datetime(2026, 1, 1, tzinfo=UTC)
MONTH = timedelta(days=30)
MINUTE = timedelta(minutes=1)
FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))


def ring(*keys):
    """Keys as (seed, minutes after START at which they were made)."""
    return KeyRing(keys=tuple(new_key(seed, START + minutes * MINUTE) for seed, minutes in keys))


# sentence → (ring, minutes at which the process started, minutes now, seed that signs)
SIGNING = {
    "the only key signs at once": (ring((FIRST, 0)), 0, 0, FIRST),
    "a new key waits until pods know it": (ring((FIRST, 0), (SECOND, 100)), 0, 104, FIRST),
    "then it signs": (ring((FIRST, 0), (SECOND, 100)), 0, 105, SECOND),
    "after a restart nobody may have told the pods": (ring((FIRST, 0), (SECOND, 100)), 110, 114, FIRST),
    "so it waits again": (ring((FIRST, 0), (SECOND, 100)), 110, 115, SECOND),
    "a key of the future waits": (ring((FIRST, 0), (SECOND, 500)), 0, 100, FIRST),
    "an only key of the future does not": (ring((FIRST, 500)), 0, 100, FIRST),
}


@pytest.mark.parametrize(("keys", "started", "now", "want"), SIGNING.values(), ids=SIGNING.keys())
def test_which_key_signs(keys, started, now, want):
    assert keys.signing(START + now * MINUTE, START + started * MINUTE).seed == want


DAYS = 24 * 60
# sentence → (ring, minutes now, asked for, seeds of the next ring)
STEPS = {
    "nothing is due": (ring((FIRST, 0)), 29 * DAYS, False, [FIRST]),
    "a key of thirty days gets a successor": (ring((FIRST, 0)), 30 * DAYS, False, [FIRST, SECOND]),
    "so does one that somebody wants replaced": (ring((FIRST, 0)), 7, True, [FIRST, SECOND]),
    "but not while one is on its way": (ring((FIRST, 0), (THIRD, 100)), 104, True, [FIRST, THIRD]),
    "the old one stays for the tokens it signed": (ring((FIRST, 0), (THIRD, 100)), 119, False, [FIRST, THIRD]),
    "and goes after them": (ring((FIRST, 0), (THIRD, 100)), 120, False, [THIRD]),
}


@pytest.mark.parametrize(("keys", "now", "asked", "want"), STEPS.values(), ids=STEPS.keys())
def test_what_is_due(keys, now, asked, want):
    after = next_ring(keys, SECOND, START + now * MINUTE, START, max_age=MONTH, asked=asked)
    assert [key.seed for key in after.keys] == want
    assert (after is keys) == (after == keys)


def test_the_secret_s_text_is_read_back():
    keys = ring((FIRST, 0), (SECOND, 100))
    assert parse(render(keys)) == keys
    assert render(keys).startswith("2026-01-01T00:00:00Z AQEBAQEB")


# sentence → (text, what is said about it)
UNREADABLE = {
    "nothing": ("", "it has 0 lines, not 1 to 4"),
    "too many keys": (render(ring(*[(FIRST, 0)] * 5)), "it has 5 lines, not 1 to 4"),
    "no time": ("AQEB\n", "line 1 is not a time and a key in base64"),
    "no base64": ("2026-01-01T00:00:00Z !!!!\n", "line 1 is not a time and a key in base64"),
    "half a key": ("2026-01-01T00:00:00Z AQEB\n", "line 1 has a key of 3 bytes, not 32"),
}


@pytest.mark.parametrize(("text", "want"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_told_without_the_key(text, want):
    with pytest.raises(ValueError, match=f"^{want}$"):
        parse(text)


def test_a_key_never_shows():
    assert "AQEB" not in repr(ring((FIRST, 0)))
    assert repr(FIRST) not in repr(ring((FIRST, 0)))


@given(
    gaps=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    asked=st.lists(st.booleans(), min_size=40, max_size=40),
    restarts=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_pods_that_learn_within_five_minutes_always_know_the_key_that_signs(gaps, asked, restarts):
    """Pods have the public keys of five minutes ago; tokens of the last eleven minutes must still be good."""
    now = started = START
    keys, handed_out, signed = ring((FIRST, 0)), [(START - MONTH, ring((FIRST, 0)))], []
    for number, (gap, wants, restart) in enumerate(zip(gaps, asked, restarts, strict=False)):
        now += gap * MINUTE
        started = now if restart else started
        keys = next_ring(keys, bytes([number + 10]) * 32, now, started, max_age=MONTH, asked=wants)
        handed_out.append((now, keys))
        assert 1 <= len(keys.keys) <= MAX_KEYS
        signing = keys.signing(now, started)
        known = [text for at, text in handed_out if now - at >= 5 * MINUTE][-1]
        assert signing in known.keys
        signed = [(at, key) for at, key in [*signed, (now, signing)] if now - at <= 11 * MINUTE]
        assert all(key in keys.keys for _, key in signed)


def test_engines_accept_what_the_ring_signs():
    keys = ring((FIRST, 0), (SECOND, 100))
    for key in keys.keys:
        token = sign(key.private(), audience="uid", now_s=1000)
        verify(token, parse_public_keys(keys.public_text()), audience="uid", now_s=1001)
