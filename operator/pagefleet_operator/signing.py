"""The keys that sign control tokens: which one signs now, when a new one comes, when an old one goes.

A key signs only after every pod has had the time to learn of it, and goes only after every token that it signed has
expired; meanwhile pods are given both. Pure: the time and fresh keys are arguments.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pagefleet_engine.contract.tokens import render_public_key

SPREAD: Final = timedelta(minutes=5)
"""From writing a public key into a pod's annotation to the engine having read it, with much to spare: a kubelet looks
about every 90 s."""
OVERLAP: Final = timedelta(minutes=15)
"""How long a key stays known after it has stopped signing: longer than any token lives, with skewed clocks too."""
MAX_KEYS: Final = 4

_SEED_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """One private key, as 32 raw bytes; it never shows in a message."""

    created: datetime
    seed: bytes

    def __repr__(self) -> str:
        return f"SigningKey(created={self.created.isoformat()})"

    def private(self) -> Ed25519PrivateKey:
        """The key itself."""
        return Ed25519PrivateKey.from_private_bytes(self.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRing:
    """All keys that pods are given, in the order in which they came; at least one."""

    keys: tuple[SigningKey, ...]

    def signing(self, now: datetime, started: datetime) -> SigningKey:
        """The latest key that pods have had the time to learn of, else the first.

        `started` is when this process began to hand out keys: before that, nobody may have told the pods.
        """
        known = [key for key in self.keys if now - max(key.created, started) >= SPREAD]
        return known[-1] if known else self.keys[0]

    def public_text(self) -> str:
        """The public keys as engines read them; changes only when a key comes or goes."""
        return "\n".join(render_public_key(key.private().public_key()) for key in self.keys)


def new_key(seed: bytes, now: datetime) -> SigningKey:
    """A key of now, in whole seconds as the Secret keeps it."""
    return SigningKey(created=now.replace(microsecond=0), seed=seed)


def next_ring(
    ring: KeyRing, fresh: bytes, now: datetime, started: datetime, *, max_age: timedelta, asked: bool
) -> KeyRing:
    """The ring after what is due now; `ring` itself when nothing is. `asked`: somebody wants a new key at once."""
    signing = ring.signing(now, started)
    is_settled = signing is ring.keys[-1]
    if is_settled and (asked or now - signing.created >= max_age) and len(ring.keys) < MAX_KEYS:
        return KeyRing(keys=(*ring.keys, new_key(fresh, now)))
    since = now - max(signing.created, started)
    if is_settled and len(ring.keys) > 1 and since >= SPREAD + OVERLAP:
        return KeyRing(keys=(signing,))
    return ring


def render(ring: KeyRing) -> str:
    """What the Secret keeps: a line per key, when it was made and its 32 bytes in base64."""
    return "".join(
        f"{key.created.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ} {base64.b64encode(key.seed).decode()}\n" for key in ring.keys
    )


def parse(text: str) -> KeyRing:
    """Raises `ValueError` with one sentence that does not repeat the text."""
    keys = tuple(_key(number, line) for number, line in enumerate(text.splitlines(), start=1))
    if not 1 <= len(keys) <= MAX_KEYS:
        raise ValueError(f"it has {len(keys)} lines, not 1 to {MAX_KEYS}")
    return KeyRing(keys=keys)


def _key(number: int, line: str) -> SigningKey:
    created, _, seed = line.partition(" ")
    try:
        moment = datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        raw = base64.b64decode(seed, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError(f"line {number} is not a time and a key in base64") from None
    if len(raw) != _SEED_BYTES:
        raise ValueError(f"line {number} has a key of {len(raw)} bytes, not {_SEED_BYTES}")
    return SigningKey(created=moment, seed=raw)
