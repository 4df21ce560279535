"""Kopf in its thread against a small HTTP server: events wake services, and whatever ends it, it starts again."""

import asyncio
import json

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from prometheus_client import CollectorRegistry

from pagefleet_operator.handlers import Watches
from pagefleet_operator.labels import Key
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.testing import llm_service

VERBS = ["list", "watch", "get", "create", "patch", "delete"]
RESOURCES = {
    "/api/v1": [("pods", "Pod"), ("services", "Service"), ("namespaces", "Namespace"), ("events", "Event")],
    "/apis/policy/v1": [("poddisruptionbudgets", "PodDisruptionBudget")],
    "/apis/pagefleet.io/v1alpha1": [("llmservices", "LLMService")],
    "/apis/apiextensions.k8s.io/v1": [("customresourcedefinitions", "CustomResourceDefinition")],
}


class Server:
    """Discovery, empty lists, and one watch stream per resource that the test writes to."""

    def __init__(self):
        self.watching = asyncio.Queue()
        self.streams = {}
        self.selectors = {}
        self.tokens = set()
        self.is_gone = False

    async def handle(self, request):
        self.tokens.add(request.headers.get("Authorization"))
        path = request.path
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/apis":
            return web.json_response({"groups": [self.group(name) for name in RESOURCES if name != "/api/v1"]})
        if path in RESOURCES:
            return web.json_response({"resources": [self.resource(*names) for names in RESOURCES[path]]})
        if request.query.get("watch"):
            return await self.stream(request)
        return web.json_response({"items": [], "metadata": {"resourceVersion": "1"}})

    @staticmethod
    def group(path):
        _, _, name, version = path.split("/")
        entry = {"groupVersion": f"{name}/{version}", "version": version}
        return {"name": name, "versions": [entry], "preferredVersion": entry}

    @staticmethod
    def resource(plural, kind):
        return {"name": plural, "kind": kind, "singularName": kind.lower(), "namespaced": True, "verbs": VERBS}

    async def stream(self, request):
        plural = request.path.rpartition("/")[2]
        if self.is_gone:
            return web.json_response({"kind": "Status", "code": 404, "reason": "NotFound"}, status=404)
        self.selectors[plural] = request.query.get("labelSelector")
        self.streams[plural] = asyncio.Queue()
        response = web.StreamResponse()
        await response.prepare(request)
        self.watching.put_nowait(plural)
        while (event := await self.streams[plural].get()) is not None:
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    async def until_watched(self):
        """Wait until all four streams are open."""
        seen = set()
        while len(seen) < 4:
            seen.add(await self.watching.get())


@pytest.fixture
async def server():
    made = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    for queue in made.streams.values():
        queue.put_nowait(None)
    await runner.cleanup()


@pytest.fixture
async def woken():
    return asyncio.Queue()


@pytest.fixture
async def restarts():
    return asyncio.Queue()


@pytest.fixture
async def watches(server, woken, restarts):
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    configuration.api_key["BearerToken"] = "Bearer abc"

    async def until_served():
        restarts.put_nowait(True)

    made = Watches(
        wake=woken.put_nowait,
        configuration=configuration,
        namespaces=("models",),
        metrics=OperatorMetrics(CollectorRegistry()),
        random=lambda: 0.0,
        until_served=until_served,
        restart_after_s=0,
    )
    task = asyncio.create_task(made.run())
    await server.until_watched()
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def event(kind, raw):
    metadata = {"uid": "uid-1", "resourceVersion": "2", **raw["metadata"]}
    return {"type": kind, "object": raw | {"metadata": metadata}}


async def test_a_service_and_its_child_wake_the_service(server, watches, woken):
    server.streams["llmservices"].put_nowait(event("ADDED", llm_service("a")))
    assert await woken.get() == Key("models", "a")
    owner = {"apiVersion": "pagefleet.io/v1alpha1", "kind": "LLMService", "name": "b", "uid": "u", "controller": True}
    metadata = {"name": "b-1", "namespace": "models", "ownerReferences": [owner]}
    server.streams["pods"].put_nowait(event("DELETED", {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}))
    assert await woken.get() == Key("models", "b")


async def test_what_is_watched_and_by_whom(server, watches):
    ours = "app.kubernetes.io/managed-by=pagefleet-operator"
    assert server.selectors == {
        "llmservices": None,
        "pods": ours,
        "services": ours,
        "poddisruptionbudgets": ours,
    }
    assert server.tokens == {"Bearer abc"}


async def test_watches_that_fail_start_again(server, watches, woken, restarts):
    await restarts.get()
    server.is_gone = True
    server.streams["llmservices"].put_nowait(None)
    await restarts.get()
    server.is_gone = False
    await server.until_watched()
    server.streams["llmservices"].put_nowait(event("ADDED", llm_service("a")))
    assert await woken.get() == Key("models", "a")
