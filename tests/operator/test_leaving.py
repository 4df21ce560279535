"""How a marked pod leaves or comes back: each act at its moment, and never a stream cut before its time."""

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.fake_engines import engine_state
from pagefleet_operator.leaving import Act, Departure, acts_of_leaving, acts_of_return

TIMEOUT = timedelta(minutes=5)
MARKED = Departure(
    waited=timedelta(), is_closed=False, closed_for=None, is_routed=True, runs=True, engine=engine_state(in_flight=3)
)
CLOSED = replace(MARKED, is_closed=True, closed_for=timedelta(), engine=engine_state("draining", in_flight=3))
GONE = replace(CLOSED, is_routed=False)


@dataclass(frozen=True, kw_only=True)
class Case:
    departure: Departure
    after_s: float = 10
    want: set[Act]


def after(departure, seconds):
    """The same, seconds later."""
    passed = timedelta(seconds=seconds)
    closed_for = None if departure.closed_for is None else departure.closed_for + passed
    return replace(departure, waited=departure.waited + passed, closed_for=closed_for)


CASES = {
    "a marked pod is made unready and drains": Case(departure=MARKED, want={Act.CLOSE_GATE, Act.DRAIN}),
    "an engine that drains already is not asked again": Case(
        departure=replace(MARKED, engine=engine_state("draining")), want={Act.CLOSE_GATE}
    ),
    "late arrivals are served while endpoints send them": Case(departure=CLOSED, want=set()),
    "the nodes get a moment to follow the endpoints": Case(departure=GONE, after_s=1.9, want=set()),
    "then late arrivals are refused": Case(departure=GONE, after_s=2, want={Act.REFUSE}),
    "running requests are waited for": Case(
        departure=replace(GONE, engine=engine_state("refusing", in_flight=1)), want=set()
    ),
    "an idle engine that takes nothing any more is deleted": Case(
        departure=replace(GONE, engine=engine_state("refusing")), want={Act.DELETE}
    ),
    "an idle engine that would still take late arrivals is not": Case(
        departure=replace(CLOSED, engine=engine_state("draining")), want=set()
    ),
    "one whose grace has passed while endpoints lag is deleted once idle": Case(
        departure=replace(CLOSED, engine=engine_state("refusing")), want={Act.DELETE}
    ),
    "an engine that cannot be asked is still made unready first": Case(
        departure=replace(MARKED, engine=None), want={Act.CLOSE_GATE}
    ),
    "and waited for while endpoints send traffic": Case(departure=replace(CLOSED, engine=None), want=set()),
    "and deleted after: SIGTERM drains it": Case(departure=replace(GONE, engine=None), want={Act.DELETE}),
    "an engine that has died has nothing to finish": Case(departure=replace(MARKED, runs=False), want={Act.DELETE}),
    "an engine that was restarted in mid-drain drains anew": Case(
        departure=replace(CLOSED, engine=engine_state("loading")), want={Act.DRAIN}
    ),
    "nobody stays longer than the timeout": Case(departure=CLOSED, after_s=300, want={Act.CUT}),
    "an idle one is deleted, not cut, even then": Case(
        departure=replace(GONE, engine=engine_state("refusing")), after_s=300, want={Act.DELETE}
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_leaving(case):
    assert acts_of_leaving(after(case.departure, case.after_s), TIMEOUT) == case.want


RETURNS = {
    "the engine serves on first": (CLOSED, {Act.CANCEL}),
    "one that refuses comes back, too": (replace(GONE, engine=engine_state("refusing")), {Act.CANCEL}),
    "one that gives no answer is asked again": (replace(CLOSED, engine=None), {Act.CANCEL}),
    "then its gate opens and the mark goes": (replace(CLOSED, engine=engine_state()), {Act.OPEN_GATE, Act.UNMARK}),
    "a gate that is open needs nothing": (MARKED, {Act.UNMARK}),
    "a dead engine starts without a drain": (replace(CLOSED, engine=None, runs=False), {Act.OPEN_GATE, Act.UNMARK}),
}


@pytest.mark.parametrize(("departure", "want"), RETURNS.values(), ids=RETURNS.keys())
def test_return(departure, want):
    assert acts_of_return(departure) == want


departures = st.builds(
    Departure,
    waited=st.just(timedelta()),
    is_closed=st.booleans(),
    closed_for=st.none() | st.just(timedelta()),
    is_routed=st.booleans(),
    runs=st.just(True),
    engine=st.none()
    | st.builds(
        engine_state,
        st.sampled_from(["loading", "ready", "draining", "refusing"]),
        in_flight=st.integers(0, 2),
    ),
)


@given(departures, st.floats(0, 299))
def test_no_engine_that_has_or_may_get_requests_is_deleted_before_the_timeout(departure, after_s):
    acts = acts_of_leaving(after(departure, after_s), TIMEOUT)
    assert Act.CUT not in acts
    if Act.DELETE in acts and departure.engine is not None:
        assert (departure.engine.phase, departure.engine.in_flight) == ("refusing", 0)
    if Act.DELETE in acts and departure.engine is None:
        assert departure.is_closed
        assert not departure.is_routed
