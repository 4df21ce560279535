"""The runtime configuration: what is in force, and how a change becomes the next generation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pagefleet_engine.api import RuntimeSettings
from pagefleet_engine.contract.control import RuntimeChange, RuntimeConfig
from pagefleet_engine.server.errors import ApiError, invalid

_FIELDS = ("cap", "max_model_len", "max_num_batched_tokens")

SHORTEST_CONTEXT = 16
"""As for `--max-model-len`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the engine was started for; nothing can be raised above it."""

    capacity: int
    max_model_len: int
    max_num_batched_tokens: int

    def check(self, change: RuntimeChange) -> None:
        """Raises `ApiError` for the first value out of bounds."""
        for name, low, high in (
            ("cap", 1, self.capacity),
            ("max_model_len", SHORTEST_CONTEXT, self.max_model_len),
            ("max_num_batched_tokens", 1, self.max_num_batched_tokens),
        ):
            value = getattr(change, name)
            if value is not None and not low <= value <= high:
                raise invalid(f"{name}: {value}: must be {low} to {high}", param=name)


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


class Runtime:
    """Applies changes to an engine, one at a time."""

    def __init__(
        self, start: RuntimeConfig, bounds: Bounds, apply: Callable[[RuntimeSettings], Awaitable[None]]
    ) -> None:
        self.config = start
        self._bounds = bounds
        self._apply = apply
        self._one_at_a_time = asyncio.Lock()

    async def change(self, change: RuntimeChange) -> tuple[RuntimeConfig, RuntimeConfig]:
        """Old and new configuration, once the new one is in force. Raises `ApiError`, with nothing changed."""
        self._bounds.check(change)
        async with self._one_at_a_time:
            old = self.config
            new = next_config(old, change)
            if new is not old:
                # Shielded: a caller that leaves must not leave us with a change applied and not recorded.
                await asyncio.shield(self._apply_and_record(new))
            return old, new

    async def _apply_and_record(self, new: RuntimeConfig) -> None:
        await self._apply(RuntimeSettings(**new.model_dump(include=set(_FIELDS))))
        self.config = new


def _conflict(change: RuntimeChange, current: RuntimeConfig) -> ApiError:
    message = (
        f"expected_generation: {change.expected_generation}: the configuration is at generation {current.generation}; "
        "read it again before changing it"
    )
    return invalid(message, param="expected_generation", code="generation_conflict", status=409)
