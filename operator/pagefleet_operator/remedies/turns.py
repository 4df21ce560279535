"""Bounds how often a value changes its direction: at most twice in any `turn_s`, whatever the load does.

One direction is the safe one, and never kept back: down for a cap and for the length of requests, up for replicas. So
the other one is what is rationed: a value that moved the safe way moves back only when it has not turned within
`turn_s`; the safe move that may follow is then the second turn. Every risky move that did harm doubles the wait, up to
`most_doublings` times: a limit of the pool does not move because somebody tries it again.
"""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.remedies.memory import Turns
from pagefleet_operator.remedies.settings import LoopSettings


def may_move_at(turns: Turns, settings: LoopSettings, *, rising: bool) -> float | None:
    """The moment from which the value may move in its risky direction; None: at any time."""
    if turns.rising is None or turns.rising is rising or not turns.at_s:
        return None
    wait_s: float = settings.turn_s * 2.0 ** min(turns.failures, settings.most_doublings)
    return turns.at_s[-1] + wait_s


def may_move(turns: Turns, now_s: float, settings: LoopSettings, *, rising: bool) -> bool:
    """Whether a move in the risky direction keeps the bound now."""
    moment = may_move_at(turns, settings, rising=rising)
    return moment is None or now_s >= moment


def moved(turns: Turns, now_s: float, *, rising: bool, harm: bool = False) -> Turns:
    """After a move; `harm`: it takes back a risky one that made things worse."""
    turned = turns.rising is not None and turns.rising is not rising
    at_s = (*turns.at_s, now_s)[-2:] if turned else turns.at_s
    return replace(turns, rising=rising, at_s=at_s, failures=turns.failures + 1 if harm else turns.failures)
