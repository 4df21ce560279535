"""How one pod that serves leaves without cutting a stream, and how it comes back when it is needed after all.

    mark (annotation) ── unready (readiness gate), drain ── endpoints gone ── refuse ── nothing in flight ── delete

The engine serves late arrivals until its endpoints are gone. An engine that cannot be asked is deleted once they are:
SIGTERM runs the same drain inside the pod. Each look decides from what is there, so a step that was lost, or an
operator that was killed, costs a second and nothing else. A pod that does not serve needs none of this. No wall clock
is read here: times are those that this process has waited.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final

from pagefleet_engine.contract.control import EngineState

SETTLE: Final = timedelta(seconds=2)
"""After the endpoints say that a pod is unready, each node still has to change its rules."""
CUT_GRACE_S: Final = 5
"""What a pod whose time is over gets between SIGTERM and SIGKILL."""
ASK_AGAIN: Final = timedelta(seconds=1)

DRAINING: Final = "draining"
REFUSING: Final = "refusing"


class Act(Enum):
    """What to do about a pod on its way out. Several may be due at once."""

    CLOSE_GATE = "close the readiness gate"
    DRAIN = "drain"
    REFUSE = "refuse late arrivals"
    DELETE = "delete"
    CUT = "delete without waiting"
    CANCEL = "cancel the drain"
    OPEN_GATE = "open the readiness gate"
    UNMARK = "take the mark off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waited:
    """How long one marked pod was waited for. Nothing at all until it was seen."""

    marked: timedelta = timedelta()
    closed: timedelta | None = None  # since its readiness gate was first seen closed; None: it is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """What is known of one marked pod."""

    waited: timedelta  # since this process saw the mark
    is_closed: bool  # its readiness gate
    closed_for: timedelta | None  # since this process saw that; None: not seen yet
    is_routed: bool  # endpoints still send traffic to it
    runs: bool  # the engine's process
    engine: EngineState | None  # None: no answer


def acts_of_leaving(departure: Departure, timeout: timedelta) -> frozenset[Act]:
    """The next acts; none means to wait. `timeout` is how long running requests may take."""
    engine = departure.engine
    if not departure.runs or (engine is not None and engine.phase == REFUSING and engine.in_flight == 0):
        return frozenset({Act.DELETE})
    if departure.waited >= timeout:
        return frozenset({Act.CUT})
    acts = set() if departure.is_closed else {Act.CLOSE_GATE}
    if engine is not None and engine.phase not in (DRAINING, REFUSING):
        acts.add(Act.DRAIN)
    if _is_unreachable_by_clients(departure):
        if engine is None:
            acts.add(Act.DELETE)
        elif engine.phase == DRAINING:
            acts.add(Act.REFUSE)
    return frozenset(acts)


def acts_of_return(departure: Departure) -> frozenset[Act]:
    """What brings a marked pod back into service; the mark goes once its engine says that it serves on."""
    if departure.runs and (departure.engine is None or departure.engine.phase in (DRAINING, REFUSING)):
        return frozenset({Act.CANCEL})
    return frozenset({Act.OPEN_GATE, Act.UNMARK} if departure.is_closed else {Act.UNMARK})


def _is_unreachable_by_clients(departure: Departure) -> bool:
    closed_for = departure.closed_for
    return departure.is_closed and not departure.is_routed and closed_for is not None and closed_for >= SETTLE
