"""The real `Cluster`: the transport and credentials of `kubernetes.aio`, without its models.

Objects stay JSON: generated models would drop fields that a newer API server sends. Every call has a connect and a
total time limit. There are no retries here; the queue retries whole reconciles, which start from fresh reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration

from pagefleet_operator import labels
from pagefleet_operator.errors import ApiError, UnreachableError, api_error
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.resources import Object, Resource

CALL_TIMEOUT: Final = aiohttp.ClientTimeout(total=15, sock_connect=5)
PAGE: Final = 500
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"


class ApiServer:
    """The `Cluster` Protocol over HTTPS; an async context manager that owns its connections."""

    def __init__(
        self,
        configuration: Configuration,
        metrics: OperatorMetrics,
        on_answer: Callable[[], None] = lambda: None,
        timeout: aiohttp.ClientTimeout = CALL_TIMEOUT,
    ) -> None:
        self._client = ApiClient(configuration)
        self._client.user_agent = labels.MANAGER
        self._metrics = metrics
        self._on_answer = on_answer
        self._timeout = timeout

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, resource: Resource, namespace: str, name: str) -> Object | None:
        """See `Cluster.get`."""
        try:
            return await self._call("GET", resource_path(resource, namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def find(self, resource: Resource, namespace: str | None, selector: Mapping[str, str]) -> list[Object]:
        """See `Cluster.find`; read in pages."""
        items: list[Object] = []
        query = {"limit": str(PAGE), "labelSelector": labels.selector_text(selector)}
        while True:
            page = await self._call("GET", resource_path(resource, namespace), query=query)
            items += page["items"]
            token = page["metadata"].get("continue")
            if not token:
                return items
            query["continue"] = token

    async def create(self, resource: Resource, manifest: Object) -> Object:
        """See `Cluster.create`."""
        return await self._call("POST", resource_path(resource, manifest["metadata"]["namespace"]), body=manifest)

    async def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        patch: Object,
        *,
        subresource: str | None = None,
        by_keys: bool = False,
    ) -> Object:
        """See `Cluster.patch`."""
        path = resource_path(resource, namespace, name) + (f"/{subresource}" if subresource else "")
        return await self._call("PATCH", path, body=patch, content_type=STRATEGIC_PATCH if by_keys else MERGE_PATCH)

    async def delete(
        self, resource: Resource, namespace: str, name: str, *, uid: str, grace_s: int | None = None
    ) -> None:
        """See `Cluster.delete`; background propagation."""
        body: Object = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        await self._call("DELETE", resource_path(resource, namespace, name), body=body)

    async def probe(self, path: str) -> Object:
        """Any JSON document of the API server, for example a group's list of resources."""
        return await self._call("GET", path)

    async def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content_type: str = "application/json",
    ) -> Object:
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*request, _request_timeout=self._timeout)
            text = await response.read()  # type: ignore[no-untyped-call]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._metrics.api_errors.labels(method=method, status="none").inc()
            raise UnreachableError(f"{method} {path}: {str(error) or type(error).__name__}") from error
        self._on_answer()
        if 200 <= response.status < 300:
            return _parsed(text)
        if (method, response.status) != ("GET", 404):  # that is an answer: there is none
            self._metrics.api_errors.labels(method=method, status=str(response.status)).inc()
        raise _refusal(response.status, text)


def resource_path(resource: Resource, namespace: str | None, name: str | None = None) -> str:
    """The URL path of a collection or an object; `namespace` None is the collection over all namespaces."""
    root = "/api" if "/" not in resource.api_version else "/apis"
    parts = [root, resource.api_version]
    if namespace is not None:
        parts += ["namespaces", namespace]
    return "/".join([*parts, resource.plural, *([name] if name is not None else [])])


def _parsed(text: bytes) -> Object:
    document: Any = json.loads(text)
    return document if isinstance(document, dict) else {}


def _refusal(status: int, text: bytes) -> ApiError:
    try:
        answer = _parsed(text)
    except ValueError:
        return api_error(status, "Unknown", text.decode(errors="replace").strip()[:200])
    causes = [str(cause.get("reason")) for cause in (answer.get("details") or {}).get("causes") or ()]
    return api_error(status, str(answer.get("reason", "Unknown")), str(answer.get("message", "")), causes)
