"""The PageFleet serving engine.

    from pagefleet_engine import LLM, SamplingParams

Its public names are resolved on first use, so that importing `pagefleet_engine.contract` loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagefleet_engine.llm import LLM, Choice, Completion
    from pagefleet_engine.request import SamplingParams

__all__ = ["LLM", "Choice", "Completion", "SamplingParams"]

_HOMES = {
    "LLM": "pagefleet_engine.llm",
    "Choice": "pagefleet_engine.llm",
    "Completion": "pagefleet_engine.llm",
    "SamplingParams": "pagefleet_engine.request",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
