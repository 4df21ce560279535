"""One active operator at a time, by a Lease, in the manner of client-go's leader election.

A holder renews every 2 s; if it cannot for 10 s it must stop. A candidate takes over when the Lease has not changed for
15 s *of its own clock*: times written by others are never compared, so clocks may differ.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from pagefleet_operator.cluster import Cluster
from pagefleet_operator.errors import AlreadyExistsError, ConflictError, LeaseLostError, NotFoundError, OperatorError
from pagefleet_operator.labels import Key
from pagefleet_operator.resources import LEASE, Object

logger = logging.getLogger(__name__)
DURATION_S: Final = 15.0
RENEW_DEADLINE_S: Final = 10.0
RETRY_PERIOD_S: Final = 2.0
RELEASE_WITHIN_S: Final = 3.0

Sleep = Callable[[float], Awaitable[None]]


class LeaseHolder:
    """Takes, holds and gives back one Lease; makes it where no chart did."""

    def __init__(
        self,
        cluster: Cluster,
        lease: Key,
        identity: str,
        *,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
        on_attempt: Callable[[], None] = lambda: None,
    ) -> None:
        self._cluster = cluster
        self._lease = lease
        self._identity = identity
        self._clock = clock
        self._monotonic = monotonic
        self._sleep = sleep
        self._on_attempt = on_attempt
        self._seen: Object | None = None
        self._seen_at = 0.0

    async def acquire(self) -> None:
        """Wait for the Lease, however long; one line when the wait begins and one when it changes."""
        told = ""
        while True:
            self._on_attempt()
            try:
                holder = await self._try_take()
            except OperatorError as error:
                holder = f"nobody known: {error}"
            if holder is None:
                logger.info("holding lease %s as %s", self._lease, self._identity)
                return
            if holder != told:
                logger.info("waiting for lease %s, held by %s", self._lease, holder)
                told = holder
            await self._sleep(RETRY_PERIOD_S)

    async def hold(self) -> None:
        """Renew until cancelled. Raises `LeaseLostError` when the Lease is somebody else's or could not be renewed."""
        renewed = self._monotonic()
        while True:
            await self._sleep(RETRY_PERIOD_S)
            try:
                async with asyncio.timeout(RENEW_DEADLINE_S):
                    holder = await self._try_take()
            except (OperatorError, TimeoutError) as error:
                if self._monotonic() - renewed >= RENEW_DEADLINE_S:
                    raise LeaseLostError(f"lease {self._lease} could not be renewed: {error}") from error
                logger.warning("lease %s: renewing again in %.0f s: %s", self._lease, RETRY_PERIOD_S, error)
                continue
            if holder is not None:
                raise LeaseLostError(f"lease {self._lease} is held by {holder}")
            renewed = self._monotonic()

    async def release(self) -> None:
        """Give the Lease back, so that the next operator need not wait for it to expire; it expires in any case."""
        try:
            async with asyncio.timeout(RELEASE_WITHIN_S):
                live = await self._cluster.get(LEASE, self._lease.namespace, self._lease.name)
                if live is not None and _holder(live) == self._identity:
                    await self._patch(live, {"holderIdentity": "", "leaseDurationSeconds": 1})
        except (OperatorError, TimeoutError) as error:
            logger.warning("lease %s was not given back: %s", self._lease, str(error) or type(error).__name__)

    async def _try_take(self) -> str | None:
        """None when the Lease is ours now, else who has it."""
        live = await self._cluster.get(LEASE, self._lease.namespace, self._lease.name)
        try:
            if live is None:
                await self._create()
                return None
            holder = _holder(live)
            self._notice(live)
            expired = self._monotonic() - self._seen_at >= DURATION_S
            if holder not in ("", self._identity) and not expired:
                return holder
            await self._patch(live, self._claim(live, holder))
        except (AlreadyExistsError, ConflictError, NotFoundError):
            return "another operator, which was faster"
        return None

    def _notice(self, live: Object) -> None:
        spec = live.get("spec", {})
        if self._seen != spec:
            self._seen, self._seen_at = spec, self._monotonic()

    def _claim(self, live: Object, holder: str) -> Object:
        now = _micro_time(self._clock())
        claim: Object = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(DURATION_S),
            "renewTime": now,
        }
        if holder != self._identity:
            claim["acquireTime"] = now
            claim["leaseTransitions"] = _spec(live).get("leaseTransitions", 0) + 1
        return claim

    async def _create(self) -> None:
        manifest: Object = {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": {"name": self._lease.name, "namespace": self._lease.namespace},
            "spec": self._claim({}, ""),
        }
        await self._cluster.create(LEASE, manifest)

    async def _patch(self, live: Object, spec: Object) -> None:
        metadata = {name: live["metadata"][name] for name in ("uid", "resourceVersion")}
        body = {"metadata": metadata, "spec": spec}
        await self._cluster.patch(LEASE, self._lease.namespace, self._lease.name, body)


def _holder(live: Object) -> str:
    return str(_spec(live).get("holderIdentity") or "")


def _spec(live: Object) -> Object:
    """What was written of the holder; a Lease as the chart makes it has none, and its first holder counts as 0."""
    return live.get("spec") or {"leaseTransitions": -1}


def _micro_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
