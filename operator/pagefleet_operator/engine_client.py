"""The real `Engines`: plain HTTP to pod addresses, with every wait and every reply bounded.

What a pod answers is not trusted: redirects are not followed, cookies are not kept, and a reply ends at `MAX_REPLY`.
No connection is kept, because the address may be another pod's by the next call. There are no retries here: the next
tick asks again, and starts from fresh figures.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import TracebackType
from typing import Final, Protocol, Self, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import BaseModel, ValidationError

from pagefleet_engine.contract import paths
from pagefleet_engine.contract.arguments import API_PORT, CONTROL_PORT
from pagefleet_engine.contract.control import (
    DRAIN,
    RUNTIME_CONFIG,
    STATE,
    DrainRequest,
    EngineState,
    RuntimeAnswer,
    RuntimeChange,
    RuntimeConfig,
)
from pagefleet_engine.contract.metrics import REMEDY_METRICS
from pagefleet_operator import labels
from pagefleet_operator.engine_tokens import TokenCache
from pagefleet_operator.engines import EnginePod
from pagefleet_operator.errors import (
    EngineRefusedError,
    EngineUnreachableError,
    GenerationConflictError,
    NoSigningKeyError,
)

MAX_REPLY: Final = 512 * 1024
"""Metrics of 32 routes: 92 KB with names of 20 letters, 260 KB with the longest names and every kind of answer."""
MAX_CONNECTIONS: Final = 64
SHOWN_CHARS: Final = 300

M = TypeVar("M", bound=BaseModel)


class Signer(Protocol):
    """Who signs the tokens: None while the operator has no key."""

    def signer(self) -> Ed25519PrivateKey | None:
        """The private key to sign with now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds; `total` is for the whole call, from the connection to the last byte."""

    connect: float = 2.0
    total: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where engines listen."""

    api: int = API_PORT
    control: int = CONTROL_PORT


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of one pod, and how a message speaks of it."""

    pod: EnginePod
    method: str
    url: str
    shown: str
    headers: dict[str, str]
    content: bytes | None = None

    def says(self, problem: str) -> str:
        return f"pod {self.pod.name}: {self.shown}: {problem}"


class EngineClient:
    """The `Engines` Protocol over HTTP; an async context manager that owns its connections."""

    def __init__(
        self,
        keys: Signer,
        unix_time: Callable[[], float],
        *,
        ports: Ports | None = None,
        timeouts: Timeouts | None = None,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._keys = keys
        self._tokens = TokenCache(unix_time)
        self._ports = ports or Ports()
        self._timeouts = timeouts or Timeouts()
        self._turns = asyncio.Semaphore(max_connections)
        self._http = httpx.AsyncClient(
            verify=False,  # there is no TLS to pods; this only saves reading the certificates
            trust_env=False,
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            limits=httpx.Limits(max_connections=max_connections, max_keepalive_connections=0),
            timeout=httpx.Timeout(self._timeouts.total, connect=self._timeouts.connect),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def read_metrics(self, pod: EnginePod) -> str:
        """See `Engines.read_metrics`."""
        query = httpx.QueryParams([("name[]", name) for name in REMEDY_METRICS])
        url = f"{_origin(pod, self._ports.api)}{paths.METRICS}?{query}"
        shown = f"GET :{self._ports.api}{paths.METRICS}"
        call = _Call(pod=pod, method="GET", url=url, shown=shown, headers=_headers("text/plain"))
        return (await self._answer(call)).decode("utf-8", errors="replace")

    async def read_config(self, pod: EnginePod) -> RuntimeConfig:
        """See `Engines.read_config`."""
        return await self._control(pod, "GET", RUNTIME_CONFIG, RuntimeConfig)

    async def change_config(self, pod: EnginePod, change: RuntimeChange) -> RuntimeAnswer:
        """See `Engines.change_config`."""
        return await self._control(pod, "PATCH", RUNTIME_CONFIG, RuntimeAnswer, change)

    async def read_state(self, pod: EnginePod) -> EngineState:
        """See `Engines.read_state`."""
        return await self._control(pod, "GET", STATE, EngineState)

    async def drain(self, pod: EnginePod, *, refuse: bool) -> EngineState:
        """See `Engines.drain`."""
        return await self._control(pod, "POST", DRAIN, EngineState, DrainRequest(refuse=refuse))

    async def cancel_drain(self, pod: EnginePod) -> EngineState:
        """See `Engines.cancel_drain`."""
        return await self._control(pod, "DELETE", DRAIN, EngineState)

    async def _control(self, pod: EnginePod, method: str, path: str, kind: type[M], body: BaseModel | None = None) -> M:
        call = _Call(
            pod=pod,
            method=method,
            url=_origin(pod, self._ports.control) + path,
            shown=f"{method} :{self._ports.control}{path}",
            headers=_headers("application/json") | {"Authorization": f"Bearer {self._token(pod)}"},
            content=None if body is None else body.model_dump_json(exclude_none=True).encode(),
        )
        answer = await self._answer(call)
        try:
            return kind.model_validate_json(answer)
        except ValidationError as error:
            raise EngineRefusedError(200, call.says(f"answered no {kind.__name__}: {_first(error)}")) from None

    def _token(self, pod: EnginePod) -> str:
        key = self._keys.signer()
        if key is None:
            raise NoSigningKeyError(f"pod {pod.name}: was not asked: the operator has no signing key")
        return self._tokens.token(pod.uid, key)

    async def _answer(self, call: _Call) -> bytes:
        """The body of a good answer. A turn is waited for outside the time-out: it is not the pod's fault."""
        async with self._turns:
            try:
                async with asyncio.timeout(self._timeouts.total):
                    status, body = await self._send(call)
            except TimeoutError:
                problem = f"no full answer within {self._timeouts.total:g} s"
                raise EngineUnreachableError(call.says(problem)) from None
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                problem = _line(str(error)) or type(error).__name__
                raise EngineUnreachableError(call.says(problem)) from error
        if status == 200:
            return body
        raise _refusal(call, status, body)

    async def _send(self, call: _Call) -> tuple[int, bytes]:
        """Status and body as it came: an encoding that nobody asked for is not undone."""
        sent = self._http.stream(call.method, call.url, headers=call.headers, content=call.content)
        async with sent as response:
            body = bytearray()
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > MAX_REPLY:
                    raise EngineUnreachableError(call.says(f"the answer is longer than {MAX_REPLY} bytes"))
            return response.status_code, bytes(body)


def _origin(pod: EnginePod, port: int) -> str:
    """A zone is refused with the rest: it may hold any text, and no pod's address has one."""
    try:
        address = ipaddress.ip_address(pod.ip.replace("%", "/"))
    except ValueError:
        raise EngineUnreachableError(f"pod {pod.name}: was not asked: {pod.ip!r} is no IP address") from None
    return f"http://[{address}]:{port}" if address.version == 6 else f"http://{address}:{port}"


def _headers(accept: str) -> dict[str, str]:
    return {
        "Accept": accept,
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "Connection": "close",
        "User-Agent": labels.MANAGER,
    }


def _refusal(call: _Call, status: int, body: bytes) -> EngineRefusedError:
    if 300 <= status < 400:
        return EngineRefusedError(status, call.says(f"{status}: a redirect, which is not followed"))
    try:
        error = json.loads(body)["error"]
        message, code = str(error["message"]), error.get("code")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        message, code = body.decode("utf-8", errors="replace"), None
    kind = GenerationConflictError if (status, code) == (409, "generation_conflict") else EngineRefusedError
    return kind(status, call.says(f"{status}: {_line(message) or 'no reason given'}"))


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    return _line(f"{where}: {first['msg']}" if where else first["msg"])


def _line(text: str) -> str:
    """Foreign text as part of one log line."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text[: 4 * SHOWN_CHARS])
    return " ".join(printable.split())[:SHOWN_CHARS]
