"""When to look at a service again: sooner than usual while a busy route of it is tested. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from pagefleet_operator.api.status import RouteState
from pagefleet_operator.control.routes import count
from pagefleet_operator.remedies.precision.memory import Memory
from pagefleet_operator.remedies.settings import LoopSettings
from pagefleet_operator.remedies.window import PodWindow

TESTED: Final = (RouteState.TESTING, RouteState.PROBING)


def look_again_after(
    memories: Mapping[str, Memory], windows: Collection[PodWindow], settings: LoopSettings
) -> float | None:
    """Seconds until a look holds as many answers of the busiest tested route as it should.

    None where the usual pace does that.
    """
    rates = [_answers_per_second(windows, name) for name, memory in memories.items() if memory.state in TESTED]
    busiest = max(rates, default=0.0)
    if busiest * settings.look_every_s <= settings.answers_per_look:
        return None
    return max(settings.shortest_look_s, settings.answers_per_look / busiest)


def _answers_per_second(windows: Collection[PodWindow], route: str) -> float:
    return sum(sum(count([window], route).values()) / window.interval_s for window in windows)
