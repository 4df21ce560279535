"""What an engine begins with: the command line, then the start file, then what was changed before a restart. Pure."""

from __future__ import annotations

from typing import NamedTuple

from pagefleet_engine.api import ModelInfo
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.control import RuntimeConfig, RuntimeStart
from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.control.runtime import Bounds
from pagefleet_engine.server.control.start_file import FLAG
from pagefleet_engine.server.errors import ApiError
from pagefleet_engine.server.routes import check_precisions, check_routes, check_same_routes, default_route


class Restored(NamedTuple):
    """The configuration to go on with."""

    config: RuntimeConfig
    ignored: tuple[str, ...]
    """What of the saved one does not fit this engine, one line each."""


def first_config(arguments: EngineArguments, start: RuntimeStart, model: str, info: ModelInfo) -> RuntimeConfig:
    """Generation 1. Raises `StartupError` when the start file asks for what this model cannot do."""
    bounds = bounds_of(arguments, info)
    routes = start.routes or (default_route(model, arguments.kv_cache_dtype),)
    try:
        if start.max_model_len is not None:
            bounds.check_value("max_model_len", start.max_model_len)
        if start.routes is not None:
            check_precisions(start.routes, info)
    except ApiError as error:
        raise StartupError(f"{FLAG} {arguments.runtime_config_file}: {error.body.message}") from None
    return RuntimeConfig(
        generation=1,
        cap=start.cap or arguments.initial_cap,
        max_model_len=start.max_model_len or info.max_model_len,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        routes=routes,
    )


def bounds_of(arguments: EngineArguments, info: ModelInfo) -> Bounds:
    """What the engine is started for."""
    return Bounds(
        capacity=arguments.max_num_seqs,
        max_model_len=info.max_model_len,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        info=info,
    )


def restore(first: RuntimeConfig, saved: RuntimeConfig | None, bounds: Bounds) -> Restored:
    """The saved configuration, within the bounds of this start; `first` where there is none."""
    if saved is None:
        return Restored(first, ())
    values, ignored = {}, []
    for name, (low, high) in bounds.ranges().items():
        value = getattr(saved, name)
        values[name] = min(max(value, low), high)
        if values[name] != value:
            ignored.append(f"{name} {value}: this engine takes {low} to {high}; it goes on with {values[name]}")
    routes = saved.routes
    try:
        check_routes(routes, bounds.info)
        check_same_routes(first.routes, routes)
    except ApiError as error:
        ignored.append(f"{error.body.message}; the routes are those of the start")
        routes = first.routes
    config = RuntimeConfig(generation=saved.generation, routes=routes, **values)
    return Restored(config, tuple(ignored))
