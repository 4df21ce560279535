"""The runtime configuration: what is in force, and how a change becomes the next generation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pagefleet_engine.api import ModelInfo, RuntimeSettings
from pagefleet_engine.contract.control import RuntimeChange, RuntimeConfig
from pagefleet_engine.server.errors import ApiError, invalid
from pagefleet_engine.server.routes import check_routes, check_same_routes

_SETTINGS = ("cap", "max_model_len", "max_num_batched_tokens")
_FIELDS = (*_SETTINGS, "routes")

SHORTEST_CONTEXT = 16
"""As for `--max-model-len`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the engine was started for; nothing can be raised above it."""

    capacity: int
    max_model_len: int
    max_num_batched_tokens: int
    info: ModelInfo

    def ranges(self) -> dict[str, tuple[int, int]]:
        """Lowest and highest value of each setting."""
        return {
            "cap": (1, self.capacity),
            "max_model_len": (min(SHORTEST_CONTEXT, self.max_model_len), self.max_model_len),
            "max_num_batched_tokens": (1, self.max_num_batched_tokens),
        }

    def check_value(self, name: str, value: int) -> None:
        """Raises `ApiError` for a setting out of bounds."""
        low, high = self.ranges()[name]
        if not low <= value <= high:
            raise invalid(f"{name}: {value}: must be {low} to {high}", param=name)

    def check(self, change: RuntimeChange, current: RuntimeConfig) -> None:
        """Raises `ApiError` for the first value that cannot be put in force."""
        for name in _SETTINGS:
            value = getattr(change, name)
            if value is not None:
                self.check_value(name, value)
        if change.routes is not None:
            check_routes(change.routes, self.info)
            check_same_routes(current.routes, change.routes)


def next_config(current: RuntimeConfig, change: RuntimeChange) -> RuntimeConfig:
    """The configuration after `change`; `current` itself when everything asked for is in force. Pure.

    Raises `ApiError` (409) when the change was decided on another generation.
    """
    values = {name: value for name in _FIELDS if (value := getattr(change, name)) is not None}
    wanted = current.model_copy(update=values)
    if wanted == current:
        return current
    if change.expected_generation != current.generation:
        raise _conflict(change, current)
    return wanted.model_copy(update={"generation": current.generation + 1})


def settings_of(config: RuntimeConfig) -> RuntimeSettings:
    """The part of it that the engine itself keeps."""
    return RuntimeSettings(**config.model_dump(include=set(_SETTINGS)))


class Runtime:
    """Applies changes to an engine, one at a time."""

    def __init__(self, start: RuntimeConfig, bounds: Bounds, apply: Callable[[RuntimeConfig], Awaitable[None]]) -> None:
        """`start` is in force already; `apply` puts another one in force, or raises with nothing changed."""
        self.config = start
        self._bounds = bounds
        self._apply = apply
        self._one_at_a_time = asyncio.Lock()

    async def change(self, change: RuntimeChange) -> tuple[RuntimeConfig, RuntimeConfig]:
        """Old and new configuration, once the new one is in force. Raises `ApiError`, with nothing changed."""
        # Shielded: a caller that leaves must not leave us with a change applied and not recorded.
        return await asyncio.shield(self._change(change))

    async def _change(self, change: RuntimeChange) -> tuple[RuntimeConfig, RuntimeConfig]:
        async with self._one_at_a_time:
            old = self.config
            self._bounds.check(change, old)
            new = next_config(old, change)
            if new is not old:
                await self._apply(new)
                self.config = new
            return old, new


def _conflict(change: RuntimeChange, current: RuntimeConfig) -> ApiError:
    message = (
        f"expected_generation: {change.expected_generation}: the configuration is at generation {current.generation}; "
        "read it again before changing it"
    )
    return invalid(message, param="expected_generation", code="generation_conflict", status=409)
