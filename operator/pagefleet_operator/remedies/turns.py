"""Bounds how often a value changes its direction: at most twice in any `turn_s`, whatever the load does.

A cut is never kept back, so a rise is what is rationed: a value that fell rises again only when it has not turned
within `turn_s`; the cut that may follow is then the second turn. Every rise that did harm doubles the wait, up to
`most_doublings` times: a limit of the pool does not move because somebody tries it again.
"""

from __future__ import annotations

from dataclasses import replace

from pagefleet_operator.remedies.memory import Turns
from pagefleet_operator.remedies.settings import LoopSettings


def may_rise_at(turns: Turns, settings: LoopSettings) -> float | None:
    """The moment from which the value may rise; None: at any time."""
    if turns.rising is not False or not turns.at_s:
        return None
    wait_s: float = settings.turn_s * 2.0 ** min(turns.failures, settings.most_doublings)
    return turns.at_s[-1] + wait_s


def may_rise(turns: Turns, now_s: float, settings: LoopSettings) -> bool:
    """Whether a rise now keeps the bound."""
    moment = may_rise_at(turns, settings)
    return moment is None or now_s >= moment


def risen(turns: Turns, now_s: float) -> Turns:
    """After a rise."""
    at = (*turns.at_s, now_s)[-2:] if turns.rising is False else turns.at_s
    return replace(turns, rising=True, at_s=at)


def fallen(turns: Turns, now_s: float, *, harm: bool = False) -> Turns:
    """After a fall; `harm`: because the rise before it made things worse."""
    at = (*turns.at_s, now_s)[-2:] if turns.rising is True else turns.at_s
    return replace(turns, rising=False, at_s=at, failures=turns.failures + 1 if harm else turns.failures)
