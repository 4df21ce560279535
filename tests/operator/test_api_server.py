"""The client against a small HTTP server: paths, bodies, pages, and what each refusal becomes."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from prometheus_client import CollectorRegistry

from pagefleet_operator.api_server import ApiServer, resource_path
from pagefleet_operator.connect import load_configuration, wait_for_resource
from pagefleet_operator.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    NamespaceEndsError,
    NotFoundError,
    OperatorError,
    UnreachableError,
)
from pagefleet_operator.metrics import OperatorMetrics
from pagefleet_operator.resources import BUDGET, LLM_SERVICE, POD


class Server:
    """Answers from a script and keeps what it was asked."""

    def __init__(self):
        self.asked = []
        self.answers = []

    async def handle(self, request):
        body = await request.text()
        self.asked.append((request.method, request.path_qs, request.content_type, json.loads(body) if body else None))
        status, answer = self.answers.pop(0)
        if isinstance(answer, str):
            return web.Response(status=status, text=answer)
        return web.json_response(answer, status=status)


@pytest.fixture
async def server():
    made = Server()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", made.handle)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.port = runner.addresses[0][1]
    yield made
    await runner.cleanup()


@pytest.fixture
async def client(server):
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    async with ApiServer(configuration, OperatorMetrics(CollectorRegistry())) as made:
        yield made


def refusal(status, reason, message="no", **more):
    return status, {"kind": "Status", "reason": reason, "message": message} | more


TERMINATING = {"reason": "NamespaceTerminating", "message": "namespace a is being terminated"}


PATHS = {
    "a core object": (POD, "a", "b", "/api/v1/namespaces/a/pods/b"),
    "a core collection": (POD, "a", None, "/api/v1/namespaces/a/pods"),
    "a collection over all namespaces": (LLM_SERVICE, None, None, "/apis/pagefleet.io/v1alpha1/llmservices"),
    "a group's object": (BUDGET, "a", "b", "/apis/policy/v1/namespaces/a/poddisruptionbudgets/b"),
}


@pytest.mark.parametrize(("resource", "namespace", "name", "want"), PATHS.values(), ids=PATHS.keys())
def test_resource_path(resource, namespace, name, want):
    assert resource_path(resource, namespace, name) == want


async def test_get_finds_or_does_not(client, server):
    server.answers = [(200, {"kind": "Pod"}), refusal(404, "NotFound")]
    assert await client.get(POD, "a", "b") == {"kind": "Pod"}
    assert await client.get(POD, "a", "b") is None


async def test_find_reads_all_pages(client, server):
    server.answers = [
        (200, {"items": [{"n": 1}], "metadata": {"continue": "next"}}),
        (200, {"items": [{"n": 2}], "metadata": {}}),
    ]
    assert await client.find(POD, "a", {"x": "1", "b": "2"}) == [{"n": 1}, {"n": 2}]
    paths = [path for _, path, _, _ in server.asked]
    assert paths == [
        "/api/v1/namespaces/a/pods?limit=500&labelSelector=b%3D2,x%3D1",
        "/api/v1/namespaces/a/pods?limit=500&labelSelector=b%3D2,x%3D1&continue=next",
    ]


async def test_writes_say_what_they_are(client, server):
    server.answers = [(201, {}), (200, {}), (200, {}), (200, {})]
    manifest = {"metadata": {"namespace": "a", "name": "b"}}
    await client.create(POD, manifest)
    await client.patch(LLM_SERVICE, "a", "b", {"status": {"x": None}}, subresource="status")
    await client.patch(POD, "a", "b", {"metadata": {"uid": "u"}})
    await client.delete(POD, "a", "b", uid="u")
    merge = "application/merge-patch+json"
    assert server.asked == [
        ("POST", "/api/v1/namespaces/a/pods", "application/json", manifest),
        ("PATCH", "/apis/pagefleet.io/v1alpha1/namespaces/a/llmservices/b/status", merge, {"status": {"x": None}}),
        ("PATCH", "/api/v1/namespaces/a/pods/b", merge, {"metadata": {"uid": "u"}}),
        (
            "DELETE",
            "/api/v1/namespaces/a/pods/b",
            "application/json",
            {"preconditions": {"uid": "u"}, "propagationPolicy": "Background"},
        ),
    ]


REFUSALS = {
    "gone": (refusal(404, "NotFound"), NotFoundError),
    "there already": (refusal(409, "AlreadyExists"), AlreadyExistsError),
    "changed meanwhile": (refusal(409, "Conflict"), ConflictError),
    "over quota": (refusal(403, "Forbidden"), ApiError),
    "refused for a cause of another kind": (refusal(403, "Forbidden", details={"causes": [{}]}), ApiError),
    "the namespace ends": (refusal(403, "Forbidden", details={"causes": [TERMINATING]}), NamespaceEndsError),
    "too busy": (refusal(429, "TooManyRequests"), ApiError),
    "no JSON at all": ((502, "bad gateway\n"), ApiError),
}


@pytest.mark.parametrize(("answer", "want"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_refusals(client, server, answer, want):
    server.answers = [answer]
    with pytest.raises(want) as caught:
        await client.create(POD, {"metadata": {"namespace": "a", "name": "b"}})
    assert type(caught.value) is want
    assert caught.value.status == answer[0]
    assert str(caught.value) == (answer[1].strip() if isinstance(answer[1], str) else "no")


async def test_nobody_answers():
    configuration = Configuration()
    configuration.host = "http://127.0.0.1:1"
    async with ApiServer(configuration, OperatorMetrics(CollectorRegistry())) as client:
        with pytest.raises(UnreachableError, match="GET /api/v1/namespaces/a/pods/b: Cannot connect"):
            await client.get(POD, "a", "b")


async def test_waiting_for_the_crd_ends_when_it_is_there(client, server, caplog):
    server.answers = [refusal(404, "NotFound"), (503, "starting"), (200, {"kind": "APIResourceList"})]
    await wait_for_resource(client, lambda: -1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for the cluster, next try in 0.0 s: the cluster has no llmservices.pagefleet.io v1alpha1: "
        "install the CRD",
        "waiting for the cluster, next try in 0.0 s: starting",
    ]


async def test_without_credentials_there_is_one_line(tmp_path):
    with pytest.raises(OperatorError, match=r"there is no .*/missing; run in a pod, or set KUBECONFIG$"):
        await load_configuration({"KUBECONFIG": str(tmp_path / "missing")})
    (tmp_path / "empty").write_text("")
    with pytest.raises(OperatorError, match=r"^no credentials for a cluster: "):
        await load_configuration({"KUBECONFIG": str(tmp_path / "empty")})


async def test_calls_may_overlap(client, server):
    server.answers = [(200, {"kind": "Pod"})] * 5
    assert await asyncio.gather(*(client.get(POD, "a", "b") for _ in range(5))) == [{"kind": "Pod"}] * 5


async def test_an_answer_that_does_not_come_in_time_is_named(server):
    server.answers = [(200, {})]
    configuration = Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    metrics = OperatorMetrics(CollectorRegistry())
    async with ApiServer(configuration, metrics, timeout=aiohttp.ClientTimeout(total=1e-6)) as client:
        with pytest.raises(UnreachableError, match=r"^GET /api/v1/namespaces/a/pods/b: \w*Timeout"):
            await client.get(POD, "a", "b")
