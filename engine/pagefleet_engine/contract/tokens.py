"""Credentials of the control API: short-lived tokens that the operator signs for one pod.

A JSON Web Token with `alg` EdDSA and the claims `aud` (the pod's UID), `iat` and `exp` (Unix seconds), nothing else.
Time is an argument. Keys travel as base64 of their 32 raw bytes, several separated by white space.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

MAX_LIFETIME_S: Final = 600
"""A token that claims to live longer is refused."""
CLOCK_SKEW_S: Final = 60
"""How far the clocks of operator and pod may differ."""

_MAX_TOKEN_CHARS = 2_048
_MAX_KEYS = 8


class TokenError(ValueError):
    """Why a token is not accepted, for the log; whoever sent it is told nothing."""


def sign(key: Ed25519PrivateKey, *, audience: str, now_s: int, lifetime_s: int = 300) -> str:
    """A token for the pod whose UID is `audience`."""
    claims = {"aud": audience, "iat": now_s, "exp": now_s + lifetime_s}
    body = ".".join(_encode(json.dumps(part).encode()) for part in ({"alg": "EdDSA", "typ": "JWT"}, claims))
    return f"{body}.{_encode(key.sign(body.encode()))}"


def verify(token: str, keys: Sequence[Ed25519PublicKey], *, audience: str, now_s: float) -> None:
    """Raises `TokenError` unless one of `keys` signed `token` for `audience` and it is valid now."""
    if len(token) > _MAX_TOKEN_CHARS or token.count(".") != 2:
        raise TokenError("not a token")
    body, _, signature = token.rpartition(".")
    if not any(_signed_by(key, _decode(signature), body.encode()) for key in keys):
        raise TokenError("signed by none of the keys")
    header, claims = (_object(part) for part in body.split("."))
    if header.get("alg") != "EdDSA":
        raise TokenError("not signed with EdDSA")
    issued, expires = claims.get("iat"), claims.get("exp")
    if type(issued) is not int or type(expires) is not int or not 0 < expires - issued <= MAX_LIFETIME_S:
        raise TokenError("without a sensible lifetime")
    if not issued - CLOCK_SKEW_S <= now_s < expires + CLOCK_SKEW_S:
        raise TokenError("not valid now")
    if claims.get("aud") != audience:
        raise TokenError("for another pod")


def parse_public_keys(text: str) -> list[Ed25519PublicKey]:
    """The keys in `text`. Raises `ValueError` for anything that is none."""
    words = text.split()
    if len(words) > _MAX_KEYS:
        raise ValueError(f"{len(words)} keys; at most {_MAX_KEYS} are read")
    try:
        return [Ed25519PublicKey.from_public_bytes(base64.b64decode(word, validate=True)) for word in words]
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"not base64 of a 32-byte Ed25519 public key: {error}") from None


def render_public_key(key: Ed25519PublicKey) -> str:
    """One key as `parse_public_keys` reads it: for whoever signs, to hand its key to the engines."""
    return base64.b64encode(key.public_bytes_raw()).decode()


def _signed_by(key: Ed25519PublicKey, signature: bytes, body: bytes) -> bool:
    try:
        key.verify(signature, body)
    except InvalidSignature:
        return False
    return True


def _object(part: str) -> dict[str, Any]:
    try:
        value = json.loads(_decode(part))
    except (ValueError, RecursionError):
        raise TokenError("not JSON inside") from None
    if not isinstance(value, dict):
        raise TokenError("not an object inside")
    return value


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(part: str) -> bytes:
    """Strict: one text per value, so that a token has no second spelling."""
    try:
        raw = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise TokenError("not base64url") from None
    if _encode(raw) != part:
        raise TokenError("not base64url")
    return raw
