"""The services that there are, as they were observed last, and what the control loop says about each.

The reconcile and the resync put observations in; the loop reads them instead of asking the API server every few
seconds. Belongs to the event loop's thread.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pagefleet_operator.control.departures import Departures
from pagefleet_operator.control.view import ControlView
from pagefleet_operator.labels import Key
from pagefleet_operator.observe import Gathered, Observation


@dataclass(slots=True)
class Fleets:
    """One entry per service."""

    public_keys: Callable[[], str | None] = lambda: None
    """What engines check control tokens with."""
    observations: dict[Key, Observation] = field(default_factory=dict)
    views: dict[Key, ControlView] = field(default_factory=dict)
    monotonic: Callable[[], float] = time.monotonic
    _departures: Departures = field(init=False)
    _turns: Iterator[int] = field(default_factory=itertools.count)
    _read_in: dict[Key, int] = field(default_factory=dict)  # service -> the turn in which it was read

    def __post_init__(self) -> None:
        self._departures = Departures(monotonic=self.monotonic)

    def take_turn(self) -> int:
        """To be taken before a service is read: what was read in a later turn is newer."""
        return next(self._turns)

    def complete(self, key: Key, gathered: Gathered) -> Gathered:
        """What was read of a service, with what this process knows besides."""
        view = self.views.get(key)
        if view is not None and view.uid != gathered.service["metadata"]["uid"]:
            view = None  # of another service that had this name
        waited = self._departures.look_at(key, gathered.pods)
        return replace(gathered, control=view, public_keys=self.public_keys(), waited=waited)

    def saw(self, observed: Observation, turn: int) -> None:
        """Remember a service, unless it is known from a later turn. Reads in bulk take seconds, others less.

        Versions cannot tell: pods change, and are read, without a change of the service itself.
        """
        key = observed.owner.key
        if turn >= self._read_in.get(key, turn):
            self.observations[key] = observed
            self._read_in[key] = turn

    def forget(self, key: Key) -> None:
        """The service is gone."""
        self.observations.pop(key, None)
        self.views.pop(key, None)
        self._departures.forget(key)
        self._read_in.pop(key, None)
