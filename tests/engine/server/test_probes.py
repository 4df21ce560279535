"""Probes as load balancers and curious clients ask for them."""

from __future__ import annotations

import pytest

# sentence → (method, path, status)
PROBES = {
    "health": ("HEAD", "/health", 200),
    "readiness": ("HEAD", "/ready", 200),
    "metrics": ("HEAD", "/metrics", 200),
    "metrics in part": ("HEAD", "/metrics?name[]=vllm:kv_cache_usage_perc", 200),
    "a path with a key": ("HEAD", "/v1/models", 405),
}


@pytest.mark.parametrize(("method", "path", "status"), PROBES.values(), ids=PROBES.keys())
async def test_the_head_of_an_answer_is_that_of_the_whole(client, method, path, status):
    head, whole = await client.request(method, path), await client.get(path)
    assert (head.status_code, head.content) == (status, b"")
    if status == 200:
        assert {name: head.headers[name] for name in ("content-type", "content-length")} == {
            "content-type": whole.headers["content-type"],
            "content-length": str(len(whole.content)),
        }


async def test_a_head_says_not_yet_as_the_whole_does(client, hello):
    hello.service.lifecycle.is_loaded = False
    hello.service.lifecycle.stay()
    assert [(await client.head(path)).status_code for path in ("/ready", "/health")] == [503, 200]


async def test_the_document_shows_each_probe_once(client):
    document = (await client.get("/openapi.json")).json()
    assert [list(document["paths"][path]) for path in ("/health", "/ready", "/metrics")] == [["get"]] * 3
