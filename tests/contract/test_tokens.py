"""Control tokens: what the operator signs, the engine accepts; everything else it refuses."""

from __future__ import annotations

import base64
import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import assume, given
from hypothesis import strategies as st

from pagefleet_engine.contract.tokens import TokenError, parse_public_keys, render_public_key, sign, verify

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32) for seed in (1, 2))
KEYS = [OTHER.public_key(), KEY.public_key()]
POD, NOW = "5f1c", 1_800_000_000
GOOD = sign(KEY, audience=POD, now_s=NOW)


def made_of(header: object, claims: object, key: Ed25519PrivateKey = KEY) -> str:
    body = ".".join(
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims)
    )
    return f"{body}.{base64.urlsafe_b64encode(key.sign(body.encode())).rstrip(b'=').decode()}"


HEADER = {"alg": "EdDSA", "typ": "JWT"}
CLAIMS = {"aud": POD, "iat": NOW, "exp": NOW + 300}

# sentence → (token, time, the reason; None when accepted)
CASES = {
    "a fresh token": (GOOD, NOW, None),
    "made by hand in the same format": (made_of(HEADER, CLAIMS), NOW, None),
    "in its last second, by our clock": (GOOD, NOW + 359, None),
    "from a clock a minute ahead": (GOOD, NOW - 60, None),
    "expired": (GOOD, NOW + 360, "not valid now"),
    "from the future": (GOOD, NOW - 61, "not valid now"),
    "for another pod": (sign(KEY, audience="other", now_s=NOW), NOW, "for another pod"),
    "signed by a stranger": (
        sign(Ed25519PrivateKey.from_private_bytes(b"\x03" * 32), audience=POD, now_s=NOW),
        NOW,
        "signed by none of the keys",
    ),
    "for ever": (sign(KEY, audience=POD, now_s=NOW, lifetime_s=601), NOW, "without a sensible lifetime"),
    "for no time": (sign(KEY, audience=POD, now_s=NOW, lifetime_s=0), NOW, "without a sensible lifetime"),
    "without an expiry": (made_of(HEADER, {"aud": POD, "iat": NOW}), NOW, "without a sensible lifetime"),
    "with true as a time": (made_of(HEADER, CLAIMS | {"iat": True}), NOW, "without a sensible lifetime"),
    "with alg none": (made_of({"alg": "none"}, CLAIMS), NOW, "not signed with EdDSA"),
    "claims that are a list": (made_of(HEADER, []), NOW, "not an object inside"),
    "nothing": ("", NOW, "not a token"),
    "two parts": ("a.b", NOW, "not a token"),
    "four parts": (GOOD + ".x", NOW, "not a token"),
    "too long": ("a" * 3_000, NOW, "not a token"),
    "no base64": ("a.b.\u00e9", NOW, "not base64url"),
    "an empty signature": (GOOD.rpartition(".")[0] + ".", NOW, "signed by none of the keys"),
}


@pytest.mark.parametrize(("token", "now", "reason"), CASES.values(), ids=CASES.keys())
def test_verify(token, now, reason):
    if reason is None:
        verify(token, KEYS, audience=POD, now_s=now)
        return
    with pytest.raises(TokenError) as refused:
        verify(token, KEYS, audience=POD, now_s=now)
    assert str(refused.value) == reason


@given(position=st.integers(0, len(GOOD) - 1), char=st.sampled_from("ABab01-_."))
def test_a_token_with_one_character_changed_is_refused(position, char):
    changed = GOOD[:position] + char + GOOD[position + 1 :]
    assume(changed != GOOD)
    with pytest.raises(TokenError):
        verify(changed, KEYS, audience=POD, now_s=NOW)


@given(st.text(max_size=300))
def test_any_text_is_refused_in_order(text):
    with pytest.raises(TokenError):
        verify(text, KEYS, audience=POD, now_s=NOW)


def test_public_keys_survive_the_way_through_a_file():
    text = "\n".join(render_public_key(key) for key in KEYS)
    assert [key.public_bytes_raw() for key in parse_public_keys(text)] == [key.public_bytes_raw() for key in KEYS]
    assert parse_public_keys(" \n") == []


@pytest.mark.parametrize(
    "text", ["abc", "AAAA", "é", "A" * 44 + " B"], ids=["short", "3 bytes", "no ASCII", "one good one"]
)
def test_text_that_is_no_key(text):
    with pytest.raises(ValueError, match="not base64 of a 32-byte Ed25519 public key"):
        parse_public_keys(text)
