"""What every route needs, in one value: the engine once it is there, the limits, the metrics and the life cycle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pagefleet_engine.api import Engine, EngineStats
from pagefleet_engine.contract.arguments import AUTO
from pagefleet_engine.server.body import BodyReader
from pagefleet_engine.server.errors import unavailable, unknown_model
from pagefleet_engine.server.lifecycle import Lifecycle
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.metrics import ServerMetrics
from pagefleet_engine.server.progress import DEFAULT_BUDGET_S, Progress
from pagefleet_engine.server.routes import Routes, RouteTable, default_route
from pagefleet_engine.server.structured_work import StructuredWork
from pagefleet_engine.server.text import TextWorkers
from pagefleet_engine.server.tool_parser import ToolForm
from pagefleet_engine.server.tool_parser_choice import choose_form


@dataclass(slots=True, kw_only=True)
class Service:
    """Made before the model is loaded, so that probes are answered from the start; `attach` brings the engine."""

    limits: Limits
    served_names: tuple[str, ...] = ()
    """Names of the model itself, the first of which is its id; those of routes come on top."""
    tool_call_parser: str = AUTO
    """As the flag of that name."""
    seed: str = ""
    """Decides which requests of a route are its controls."""
    progress_budget_s: float = DEFAULT_BUDGET_S
    monotonic: Callable[[], float] = time.monotonic
    unix_time: Callable[[], float] = time.time
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    metrics: ServerMetrics = field(init=False)
    bodies: BodyReader = field(init=False)
    text: TextWorkers = field(init=False)
    structured: StructuredWork = field(init=False)
    progress: Progress = field(init=False)
    large_answers: asyncio.Semaphore = field(init=False)
    """Who holds it makes the JSON of an answer with prompt log probabilities, which may take hundreds of megabytes."""
    started_at: int = field(init=False)
    _routes: RouteTable | None = field(init=False, default=None)
    _engine: Engine | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.metrics = ServerMetrics(stats=self.stats, limits=self.limits)
        self.bodies = BodyReader(self.limits)
        self.text = TextWorkers(self.limits)
        self.structured = StructuredWork(self.limits)
        self.progress = Progress(budget_s=self.progress_budget_s, now=self.monotonic())
        self.large_answers = asyncio.Semaphore(1)
        self.started_at = int(self.unix_time())

    def attach(self, engine: Engine, routes: Routes = ()) -> None:
        """The engine has answered its warm-up: from now on requests are served, by these routes if there are any."""
        self._engine = engine
        self.structured.attach(engine.tokenizer, choose_form(self.tool_call_parser, engine.tokenizer))
        self.served_names = self.served_names or (engine.model_info.id,)
        self.metrics.set_model(self.served_names[0])
        info = engine.model_info
        routes = routes or (default_route(self.served_names[0], info.precision),)
        self._routes = RouteTable(routes, seed=self.seed, served_names=self.served_names, longest=info.longest_kv)
        self.metrics.set_routes(routes)
        self.lifecycle.loaded()

    @property
    def engine(self) -> Engine:
        """Raises `ApiError` (503) while there is none."""
        if self._engine is None:
            raise unavailable("the model is still loading: try again", "loading")
        return self._engine

    @property
    def backend(self) -> dict[str, str]:
        """What computes attention, on which device, and how calls are written; empty while there is no engine."""
        if self._engine is None:
            return {}
        info = self._engine.model_info
        return {
            "attention_backend": info.attention_backend,
            "device": info.device,
            "tool_call_parser": self.tool_form.name,
        }

    @property
    def tool_form(self) -> ToolForm:
        """How the model writes tool calls; there is one once there is an engine."""
        return self.structured.form

    @property
    def routes(self) -> RouteTable:
        """Raises `ApiError` (503) while there is no engine."""
        if self._routes is None:
            raise unavailable("the model is still loading: try again", "loading")
        return self._routes

    def set_routes(self, routes: Routes) -> None:
        """Other routes for requests that arrive from now on."""
        self.routes.replace(routes)
        self.metrics.set_routes(routes)

    def stats(self) -> EngineStats | None:
        """None while there is no engine."""
        return None if self._engine is None else self._engine.stats()

    def model_id(self, wanted: str | None) -> str:
        """The served name that a request asks for. Raises `ApiError` (404)."""
        if wanted is None:
            return self.served_names[0]
        if wanted not in self.routes.names:
            raise unknown_model(wanted, self.routes.names)
        return wanted

    def max_model_len(self) -> int:
        """The live limit for new requests."""
        return self.engine.stats().max_model_len

    def health_problem(self) -> str | None:
        """Why the process should be restarted, or None. Loading is healthy: start-up has its own probe.

        Everybody may read it, so it does not say what has gone wrong; the log does.
        """
        stats = self.stats()
        if stats is None:
            return None
        if stats.fatal is not None:
            return "the engine has stopped: its log says why"
        stalled = self.progress.stalled_for(stats, now=self.monotonic())
        return None if stalled is None else f"no step has finished for {stalled:.0f} s although requests wait"
