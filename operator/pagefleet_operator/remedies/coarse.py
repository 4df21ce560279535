"""Numbers that move all the time as status shows them: coarse on purpose, so that few changes are written. Pure."""

from __future__ import annotations

import math
from datetime import datetime, timedelta


def coarse(count: int) -> int:
    """A count as status shows it: exact up to 2, then the next of 5, 10, 20, 50, … so that few changes are written."""
    if count <= 2:
        return count
    magnitude: int = 10 ** (len(str(count)) - 1)
    return next(step * magnitude for step in (1, 2, 5, 10) if step * magnitude >= count)


def coarse_share(share: float) -> float:
    """A share to the nearest twentieth."""
    return round(share * 20) / 20


def about(count: float) -> str:
    """A count in a sentence: `2`, `up to 5`."""
    most = coarse(math.ceil(count))
    return str(most) if most <= 2 else f"up to {most}"


def clock(now: datetime, in_s: float) -> str:
    """A moment that lies so many seconds ahead, or back, to the nearest minute: it says the same in every look."""
    moment = now + timedelta(seconds=in_s + 30)
    return f"{moment:%H:%M} UTC"
