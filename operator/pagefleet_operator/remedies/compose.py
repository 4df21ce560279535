"""The three remedies in one look, in their fixed order, so that none undoes another."""

from __future__ import annotations

from pagefleet_operator.remedies.fleet import FleetView
from pagefleet_operator.remedies.memory import Memory
from pagefleet_operator.remedies.outlook import Outlook


def look(view: FleetView, memory: Memory) -> Outlook:
    """What should be so from now on, and why."""
    return Outlook(
        caps={}, start_cap=None, max_model_len=None, replicas=view.replicas, decisions=(), holds=(), memory=memory
    )
