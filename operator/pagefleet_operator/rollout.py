"""How a fleet gets from the pods it has to the pods it should have, one step at a time.

With N replicas wanted, surge S and unavailable U, and `old` pods of any revision but the wanted one:

    at most N + S pods are there, those of an old revision that are still leaving included
    a pod that drains stays after all when it is wanted again
    a ready pod leaves only while more than N - U pods are ready
    a pod that may yet become ready leaves only while more than N - U pods are ready or may become so
    a broken old pod leaves at once: it serves nobody, and its replacement may be the cure

Pods of the wanted revision that leave (lost, evicted, deleted by hand) are replaced without waiting for their end. The
module knows numbers and names only; it does not know why a pod is broken, and it does not delete anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum


class Health(Enum):
    """How much a pod is worth, in the order in which pods leave."""

    BROKEN = 0  # unscheduled, or its container does not run
    STARTING = 1  # runs, but is not ready
    READY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One pod of the fleet."""

    name: str
    created: datetime
    current: bool  # of the wanted revision
    health: Health
    scheduled: bool = True
    leaving: bool = False  # being deleted
    draining: bool = False  # marked to leave; may still come back
    in_flight: int | None = 0  # requests; None: nobody knows
    overdue: bool = False  # leaving for longer than it may: its node is probably gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the spec allows. Both limits at zero would never move: that counts as one unavailable."""

    replicas: int
    max_surge: int = 0
    max_unavailable: int = 1

    @property
    def min_ready(self) -> int:
        """How many ready pods a step must leave alone."""
        unavailable = self.max_unavailable if self.max_surge else max(1, self.max_unavailable)
        return max(0, self.replicas - unavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What to do next; nothing of it depends on anything else of it."""

    create: int = 0  # pods of the wanted revision
    keep: tuple[str, ...] = ()  # draining pods that are wanted again
    scale_down: tuple[str, ...] = ()
    replace: tuple[str, ...] = ()  # pods of an old revision


def next_step(members: Sequence[Member], limits: Limits) -> Step:
    """The next step towards `limits.replicas` pods of the wanted revision; empty when that is reached."""
    staying = [member for member in members if not member.leaving and not member.draining]
    needed = missing(members, staying, limits)
    keep = returning(members)[:needed]
    scale_down = surplus(staying, limits)
    kept = [member for member in staying if member not in scale_down]
    return Step(
        create=needed - len(keep),
        keep=tuple(member.name for member in keep),
        scale_down=tuple(member.name for member in scale_down),
        replace=tuple(member.name for member in replaceable(kept, limits)),
    )


def victim_order(members: Iterable[Member]) -> list[Member]:
    """Not ready first, then unscheduled, old revision, fewest requests in flight, the youngest, the last name.

    A pod of which nobody knows the requests may have many: it comes after those that are known.
    """
    by_name = sorted(members, key=lambda member: member.name, reverse=True)
    return sorted(
        by_name,
        key=lambda member: (
            member.health is Health.READY,
            member.scheduled,
            member.current,
            math.inf if member.in_flight is None else member.in_flight,
            -member.created.timestamp(),
        ),
    )


def surplus(staying: Sequence[Member], limits: Limits) -> list[Member]:
    """The pods that are too many, whatever their revision; the surge is theirs only while old pods are left."""
    has_old = any(not member.current for member in staying)
    ceiling = limits.replicas + (limits.max_surge if has_old else 0)
    return victim_order(staying)[: max(0, len(staying) - ceiling)]


def replaceable(staying: Sequence[Member], limits: Limits) -> list[Member]:
    """The old pods that may leave now."""
    old = victim_order(member for member in staying if not member.current)
    broken = [member for member in old if member.health is Health.BROKEN]
    starting = [member for member in old if member.health is Health.STARTING]
    ready = [member for member in old if member.health is Health.READY]
    num_ready = sum(member.health is Health.READY for member in staying)

    spare = max(0, num_ready + len(starting) - limits.min_ready)
    return broken + (starting + ready)[:spare]


def returning(members: Iterable[Member]) -> list[Member]:
    """The draining pods of the wanted revision that could serve on, the most worthy first."""
    return victim_order(member for member in members if member.current and member.draining and not member.leaving)[::-1]


def missing(members: Sequence[Member], staying: Sequence[Member], limits: Limits) -> int:
    """How many pods of the wanted revision there is room for."""
    num_current = sum(member.current for member in staying)
    going = [member for member in members if (member.leaving or member.draining) and not member.current]
    num_old_leaving = sum(not member.overdue for member in going)
    room = limits.replicas + limits.max_surge - len(staying) - num_old_leaving
    return max(0, min(limits.replicas - num_current, room))
