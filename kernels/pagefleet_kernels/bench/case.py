"""One case of `check_gpu.py`: something to check or to measure, in whatever process runs it. Loads nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Case(NamedTuple):
    """`section` and `name` together are unique."""

    section: str
    """The table that its rows belong to."""
    name: str
    run: Callable[[], Any]
    """Returns its rows (dicts or dataclasses, one or several), or a check's largest error. A function of a module or a
    partial of one: it is sent to another process."""
    limit_s: float = 60.0
    """Seconds from its start after which it counts as hung."""
