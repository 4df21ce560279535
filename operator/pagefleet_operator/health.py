"""`/healthz`, `/readyz` and `/metrics`.

Alive means that the loop which looks at everything has come round lately; whether the API server answers does not
matter for that, since a restart would not cure it. Ready means that the API server has answered lately; a standby is
ready, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

READY_FOR_S: Final = 90.0


@dataclass(slots=True, kw_only=True)
class Health:
    """When the process last showed signs of life."""

    monotonic: Callable[[], float]
    max_silence_s: float
    _beat: float = field(init=False)
    _answer: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._beat = self.monotonic()

    def beat(self) -> None:
        """The outermost loop came round."""
        self._beat = self.monotonic()

    def answered(self) -> None:
        """The API server gave an answer."""
        self._answer = self.monotonic()

    def why_not_alive(self) -> str | None:
        """None while all is well."""
        silence = self.monotonic() - self._beat
        return None if silence <= self.max_silence_s else f"no heartbeat for {silence:.0f} s"

    def why_not_ready(self) -> str | None:
        """None while all is well."""
        if self._answer is None:
            return "the API server has not answered yet"
        silence = self.monotonic() - self._answer
        return None if silence <= READY_FOR_S else f"no answer of the API server for {silence:.0f} s"


async def serve_health(health: Health, registry: CollectorRegistry, port: int) -> web.AppRunner:
    """Start the server; `cleanup()` of the result stops it. Raises `OSError` when the port is taken."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(health.why_not_alive())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(health.why_not_ready())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    for handler in (healthz, readyz, metrics):
        application.router.add_get(f"/{handler.__name__}", handler)
    runner = web.AppRunner(application, access_log=None, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, host=None, port=port).start()
    return runner


def _answer(trouble: str | None) -> web.Response:
    return web.Response(text=f"{trouble or 'ok'}\n", status=200 if trouble is None else 503)
