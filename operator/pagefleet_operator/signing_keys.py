"""The Secret with the signing keys: read, made where there is none, kept rotating, never overwritten when unreadable.

Only the operator that holds the lease runs this. Without a usable Secret it goes on, and asks nothing of control APIs.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pagefleet_operator import labels
from pagefleet_operator.cluster import Cluster
from pagefleet_operator.errors import AlreadyExistsError, ConflictError, OperatorError
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.resources import SECRET, Object
from pagefleet_operator.signing import KeyRing, SigningKey, new_key, next_ring, parse, render

logger = logging.getLogger(__name__)
ENTRY: Final = "keys"
"""The Secret's only entry."""
LOOK_S: Final = 30.0
LOOK_WITHOUT_KEYS_S: Final = 5.0


class SigningKeys:
    """What the Secret holds, as it was last read; `engine_client` signs with it and pods are given its public keys."""

    def __init__(
        self,
        cluster: Cluster,
        secret: Key,
        *,
        metrics: OperatorMetrics,
        clock: Callable[[], datetime],
        make_seed: Callable[[], bytes],
        max_age: timedelta,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`make_seed` gives 32 random bytes."""
        self._cluster = cluster
        self._secret = secret
        self._metrics = metrics
        self._clock = clock
        self._make_seed = make_seed
        self._max_age = max_age
        self._sleep = sleep
        self._started = clock()
        self._ring: KeyRing | None = None
        self._signing: tuple[SigningKey, Ed25519PrivateKey] | None = None
        self._told = ""

    def public_text(self) -> str | None:
        """The value of `labels.CONTROL_KEYS`; None while there are no keys: pods then keep what they have."""
        return None if self._ring is None else self._ring.public_text()

    def signer(self) -> Ed25519PrivateKey | None:
        """The key to sign with now; the same object until another key signs."""
        if self._ring is None:
            return None
        key = self._ring.signing(self._clock(), self._started)
        if self._signing is None or self._signing[0] != key:
            self._signing = (key, key.private())
        return self._signing[1]

    async def run(self) -> None:
        """Look at the Secret again and again, and rotate its keys when they are due."""
        while True:
            await self.refresh()
            await self._sleep(LOOK_WITHOUT_KEYS_S if self._ring is None else LOOK_S)

    async def refresh(self) -> None:
        """Look once. Never raises `OperatorError`: the next look may be luckier, and engines serve on meanwhile."""
        try:
            self._ring = await self._look()
            self._say_if_new("")
        except ValueError as error:
            self._ring = None
            told = f"{error}; until it is mended, or emptied for new keys, nothing is asked of engines"
            self._fail("unreadable", told)
        except OperatorError as error:
            self._fail("unavailable", f"{error}; trying again")
        self._metrics.signing_keys.set(0 if self._ring is None else len(self._ring.keys))

    async def _look(self) -> KeyRing:
        live = await self._cluster.get(SECRET, *self._secret)
        try:
            if live is None:
                return await self._create()
            return await self._advance(live)
        except (AlreadyExistsError, ConflictError):
            # Another operator was faster: what it wrote counts.
            live = await self._cluster.get(SECRET, *self._secret)
            if live is None:
                raise
            return _ring_of(live) or await self._advance(live)

    async def _create(self) -> KeyRing:
        ring = KeyRing(keys=(new_key(self._make_seed(), self._clock()),))
        metadata = {
            "name": self._secret.name,
            "namespace": self._secret.namespace,
            "labels": {labels.MANAGED_BY: labels.MANAGER},
        }
        head = {"apiVersion": SECRET.api_version, "kind": SECRET.kind, "metadata": metadata, "type": "Opaque"}
        await self._cluster.create(SECRET, head | {"data": _data(ring)})
        logger.info("secret %s: made with a new signing key", self._secret)
        return ring

    async def _advance(self, live: Object) -> KeyRing:
        """The Secret's keys, after writing what is due."""
        metadata, now = live["metadata"], self._clock()
        asked = labels.ROTATE_KEYS in (metadata.get("annotations") or {})
        old = _ring_of(live)
        if old is None:
            new = KeyRing(keys=(new_key(self._make_seed(), now),))
        else:
            new = next_ring(old, self._make_seed(), now, self._started, max_age=self._max_age, asked=asked)
        if new is old:
            return new
        patch: Object = {"metadata": {name: metadata[name] for name in ("uid", "resourceVersion")}, "data": _data(new)}
        if asked and len(new.keys) > len(old.keys if old is not None else ()):
            patch["metadata"]["annotations"] = {labels.ROTATE_KEYS: None}
        await self._cluster.patch(SECRET, *self._secret, patch)
        logger.info("secret %s: it has %d keys now, the last of %s", self._secret, len(new.keys), new.keys[-1].created)
        return new

    def _fail(self, problem: str, message: str) -> None:
        self._metrics.signing_key_errors.labels(problem=problem).inc()
        self._say_if_new(f"secret {self._secret}: {message}")

    def _say_if_new(self, problem: str) -> None:
        """One line when something begins to be wrong, not one at every look."""
        if problem and problem != self._told:
            logger.error("%s", problem)
        self._told = problem


def _ring_of(live: Object) -> KeyRing | None:
    """None for a Secret without any entry, as a chart makes it. Raises `ValueError`."""
    data = live.get("data") or {}
    if not data:
        return None
    if ENTRY not in data:
        raise ValueError(f"it has no entry {ENTRY!r}")
    try:
        text = base64.b64decode(data[ENTRY], validate=True).decode("ascii")
    except (ValueError, binascii.Error):
        raise ValueError(f"its entry {ENTRY!r} is no text") from None
    return parse(text)


def _data(ring: KeyRing) -> Object:
    return {ENTRY: base64.b64encode(render(ring).encode()).decode()}
