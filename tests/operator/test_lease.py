"""The Lease: one holder at a time, whatever the clocks say; a holder that cannot renew stops before another starts."""

from datetime import UTC, datetime, timedelta

import pytest

from pagefleet_operator.errors import ConflictError, LeaseLostError, UnreachableError
from pagefleet_operator.labels import Key
from pagefleet_operator.lease import LeaseHolder
from pagefleet_operator.resources import LEASE
from pagefleet_operator.testing import FakeCluster

LEASE_KEY = Key("pagefleet", "pagefleet-operator")
OUTAGE = UnreachableError("no answer")


class ScriptEndedError(Exception):
    """Nothing more is to happen."""


class Process:
    """One candidate with a clock of its own; its `sleep` runs what the test wants to happen meanwhile."""

    def __init__(self, cluster, name, *, clock_off_by=timedelta()):
        self.seconds = 0.0
        self.meanwhile = []
        self.lease = LeaseHolder(
            cluster,
            LEASE_KEY,
            name,
            clock=lambda: datetime(2026, 1, 1, tzinfo=UTC) + clock_off_by + timedelta(seconds=self.seconds),
            monotonic=lambda: self.seconds,
            sleep=self.sleep,
        )

    async def sleep(self, seconds):
        self.seconds += seconds
        if not self.meanwhile:
            raise ScriptEndedError
        await self.meanwhile.pop(0)()


async def nothing():
    pass


async def holder(cluster):
    return (await cluster.get(LEASE, *LEASE_KEY))["spec"]["holderIdentity"]


async def hold(process, *meanwhile):
    """Hold while these things happen, one per renewal."""
    process.meanwhile = list(meanwhile)
    with pytest.raises(ScriptEndedError):
        await process.lease.hold()


@pytest.fixture
def cluster():
    return FakeCluster()


async def test_the_first_gets_it_and_keeps_it(cluster):
    first = Process(cluster, "first")
    await first.lease.acquire()
    await hold(first, *[nothing] * 20)
    assert await holder(cluster) == "first"
    assert (await cluster.get(LEASE, *LEASE_KEY))["spec"]["leaseTransitions"] == 0


@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_a_second_waits_as_long_as_the_first_renews_and_writes_nothing(cluster, hours):
    first, second = Process(cluster, "first"), Process(cluster, "second", clock_off_by=timedelta(hours=hours))
    await first.lease.acquire()

    async def renew():
        await hold(first, nothing)

    second.meanwhile = [renew] * 30
    with pytest.raises(ScriptEndedError):
        await second.lease.acquire()
    assert await holder(cluster) == "first"
    assert second.seconds > 60


@pytest.mark.parametrize("hours", [-1, 0, 1])
async def test_a_second_takes_over_fifteen_seconds_after_the_last_renewal(cluster, hours):
    first, second = Process(cluster, "first"), Process(cluster, "second", clock_off_by=timedelta(hours=hours))
    await first.lease.acquire()
    second.meanwhile = [nothing] * 30
    await second.lease.acquire()
    assert second.seconds == 16
    assert await holder(cluster) == "second"
    first.meanwhile = [nothing]
    with pytest.raises(LeaseLostError, match="held by second"):
        await first.lease.hold()


async def test_a_lease_that_was_given_back_is_free_at_once(cluster):
    first, second = Process(cluster, "first"), Process(cluster, "second")
    await first.lease.acquire()
    await first.lease.release()
    await second.lease.acquire()
    assert second.seconds == 0
    assert (await cluster.get(LEASE, *LEASE_KEY))["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("spec", [{}, {"spec": {}}], ids=["no spec", "an empty spec"])
async def test_a_lease_as_the_chart_makes_it_is_free(cluster, spec):
    await cluster.create(LEASE, {"metadata": {"name": LEASE_KEY.name, "namespace": LEASE_KEY.namespace}} | spec)
    first = Process(cluster, "first")
    await first.lease.acquire()
    assert first.seconds == 0
    assert await holder(cluster) == "first"
    assert (await cluster.get(LEASE, *LEASE_KEY))["spec"]["leaseTransitions"] == 0


async def test_giving_back_a_lease_that_was_emptied_changes_nothing(cluster):
    await cluster.create(LEASE, {"metadata": {"name": LEASE_KEY.name, "namespace": LEASE_KEY.namespace}})
    await Process(cluster, "first").lease.release()
    assert "spec" not in await cluster.get(LEASE, *LEASE_KEY)


async def test_giving_back_what_another_holds_changes_nothing(cluster):
    first, second = Process(cluster, "first"), Process(cluster, "second")
    await first.lease.acquire()
    await second.lease.release()
    assert await holder(cluster) == "first"


async def test_a_short_outage_is_survived(cluster):
    first = Process(cluster, "first")
    await first.lease.acquire()

    async def fail():
        cluster.fail_next("get", "leases", OUTAGE)

    await hold(first, fail, fail, fail, nothing, nothing)
    assert await holder(cluster) == "first"


async def test_a_long_outage_ends_the_holder_before_the_lease_expires(cluster):
    first = Process(cluster, "first")
    await first.lease.acquire()

    async def fail():
        cluster.fail_next("get", "leases", OUTAGE)

    first.meanwhile = [fail] * 20
    with pytest.raises(LeaseLostError, match="could not be renewed"):
        await first.lease.hold()
    assert first.seconds == 10


async def test_losing_a_race_is_waiting(cluster):
    first = Process(cluster, "first")
    await first.lease.acquire()
    await first.lease.release()
    second = Process(cluster, "second")
    cluster.fail_next("patch", "leases", ConflictError(409, "Conflict", "changed"))
    second.meanwhile = [nothing]
    await second.lease.acquire()
    assert second.seconds == 2


async def test_waiting_survives_an_outage(cluster):
    first = Process(cluster, "first")
    cluster.fail_next("get", "leases", OUTAGE)
    first.meanwhile = [nothing]
    await first.lease.acquire()
    assert await holder(cluster) == "first"


async def test_a_lease_that_cannot_be_given_back_stops_nobody(cluster, caplog):
    first = Process(cluster, "first")
    await first.lease.acquire()
    cluster.fail_next("get", "leases", OUTAGE)
    await first.lease.release()
    assert caplog.messages[-1] == "lease pagefleet/pagefleet-operator was not given back: no answer"
