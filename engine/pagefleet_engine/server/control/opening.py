"""Puts the first runtime configuration in force, and makes the object that changes it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from pagefleet_engine.api import Engine
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.control import RuntimeConfig, RuntimeStart
from pagefleet_engine.server.control.beginning import bounds_of, first_config, restore
from pagefleet_engine.server.control.runtime import Runtime, settings_of
from pagefleet_engine.server.control.state_file import StateFile
from pagefleet_engine.server.service import Service

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What is known before there is an engine."""

    arguments: EngineArguments
    start: RuntimeStart
    state: StateFile | None
    service: Service

    async def attach(self, engine: Engine) -> Runtime:
        """The service serves by the first configuration from here on.

        Raises `StartupError` when the start file asks for what this model cannot do.
        """
        info = engine.model_info
        model = self.arguments.served_model_name[0] if self.arguments.served_model_name else info.id
        bounds = bounds_of(self.arguments, info)
        first = first_config(self.arguments, self.start, model, info)
        saved = None if self.state is None else await asyncio.to_thread(self.state.read)
        config, ignored = restore(first, saved, bounds)
        for line in ignored:
            log.warning("--state-dir: %s", line)
        await self._begin(engine, config)
        self.service.attach(engine, config.routes)
        return Runtime(config, bounds, self._apply)

    async def _begin(self, engine: Engine, config: RuntimeConfig) -> None:
        stats, budget = engine.stats(), self.arguments.max_num_batched_tokens
        is_so_already = (stats.cap, stats.max_model_len, budget) == (
            config.cap,
            config.max_model_len,
            config.max_num_batched_tokens,
        )
        if not is_so_already:
            await engine.configure(settings_of(config))
        log.info(
            "runtime configuration: generation %d, cap %d, context %d tokens, routes %s",
            config.generation,
            config.cap,
            config.max_model_len,
            ", ".join(f"{route.name} ({route.model}, {route.precision})" for route in config.routes),
        )

    async def _apply(self, config: RuntimeConfig) -> None:
        await self.service.engine.configure(settings_of(config))
        self.service.set_routes(config.routes)
        if self.state is not None:
            await asyncio.to_thread(self.state.write, config)
