"""The control API of one process, put together from its arguments; absent where no key file is given."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.control import POD_UID_VARIABLE
from pagefleet_engine.errors import StartupError
from pagefleet_engine.server.control.app import create_control_app
from pagefleet_engine.server.control.auth import ControlTokens
from pagefleet_engine.server.control.runtime import Runtime
from pagefleet_engine.server.drain import Drain
from pagefleet_engine.server.errors import unavailable
from pagefleet_engine.server.http import HttpServer
from pagefleet_engine.server.service import Service


class ControlSide:
    """Its server, and the runtime configuration once there is an engine."""

    def __init__(self, service: Service, drain: Drain, arguments: EngineArguments, tokens: ControlTokens) -> None:
        self._runtime: Runtime | None = None
        app = create_control_app(service, drain, self.runtime, tokens.check)
        self.server = HttpServer(app, host=arguments.host, port=arguments.control_port, limits=service.limits)

    def attach(self, runtime: Runtime) -> None:
        """The engine is there, and can be changed."""
        self._runtime = runtime

    def runtime(self) -> Runtime:
        """Raises `ApiError` (503) while the model is loading."""
        if self._runtime is None:
            raise unavailable("the model is still loading: try again", "loading")
        return self._runtime


def build_control_side(
    service: Service, drain: Drain, arguments: EngineArguments, environ: Mapping[str, str]
) -> ControlSide | None:
    """None without `--control-key-file`. Raises `StartupError` when it cannot be guarded."""
    if arguments.control_key_file is None:
        return None
    audience = environ.get(POD_UID_VARIABLE)
    if not audience:
        raise StartupError(f"--control-key-file: set {POD_UID_VARIABLE} to the pod's UID, which tokens are signed for")
    path = Path(arguments.control_key_file)
    tokens = ControlTokens(path, audience=audience, monotonic=service.monotonic, unix_time=service.unix_time)
    return ControlSide(service, drain, arguments, tokens)
