"""What the contract names is what a running engine exports, with types and labels, and nothing a client chooses."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_engine.contract.metrics import ALIASES, HELP, LATENCY_BUCKETS_S, Metric, Refusal
from pagefleet_engine.server.testing import FakeEngine, running_server, say

SECRET = "xyzzy-4711"


async def scrape(path: str = "/metrics", *, requests: int = 0) -> str:
    async with running_server(FakeEngine(say("hello"))) as server, httpx.AsyncClient(base_url=server.url) as client:
        for _ in range(requests):
            body = {"prompt": SECRET, "user": SECRET, "max_tokens": 3, "seed": 4711}
            await client.post("/v1/completions", json=body, headers={"authorization": f"Bearer {SECRET}"})
        await client.post("/v1/completions", json={"prompt": SECRET, "model": SECRET})
        await client.get(f"/{SECRET}")
        return (await client.get(path)).text


def families(text: str) -> dict:
    return {family.name: family for family in text_string_to_metric_families(text)}


async def test_every_name_of_the_contract_is_exported_before_the_first_request():
    exported = families(await scrape())
    wanted = {name.removesuffix("_total") for name in [*Metric, *ALIASES]}
    assert wanted <= exported.keys()
    assert all(exported[name].samples for name in wanted)


async def test_types_and_labels():
    exported = families(await scrape(requests=2))
    for name in Metric:
        family = exported[name.removesuffix("_total")]
        kind = "histogram" if name in LATENCY_BUCKETS_S else "counter" if name.endswith("_total") else "gauge"
        assert (family.name, family.type, family.documentation) == (family.name, kind, HELP[name])
        assert {sample.labels["model_name"] for sample in family.samples} == {"fake"}


async def test_aliases_say_the_same():
    exported = families(await scrape(requests=2))
    for alias, name in ALIASES.items():
        pair = (alias.removesuffix("_total"), name.removesuffix("_total"))
        values = [[sample.value for sample in exported[each].samples] for each in pair]
        assert values[0] == values[1]


async def test_what_requests_did_is_counted():
    exported = families(await scrape(requests=2))
    by_reason = {sample.labels["finished_reason"]: sample.value for sample in exported["vllm:request_success"].samples}
    assert by_reason == {"stop": 0, "length": 2, "abort": 0, "error": 0}
    refused = {sample.labels["reason"]: sample.value for sample in exported["pagefleet:requests_refused"].samples}
    assert refused == dict.fromkeys(Refusal, 0) | {"invalid": 2}
    counts = {
        name: next(s.value for s in exported[name].samples if s.name.endswith("_count")) for name in LATENCY_BUCKETS_S
    }
    assert counts == {
        Metric.TIME_TO_FIRST_TOKEN: 2,
        Metric.INTER_TOKEN_LATENCY: 4,
        Metric.E2E_LATENCY: 2,
    }


async def test_prefix_hits_are_told_per_tier():
    engine = FakeEngine(say("hello"))
    engine.figures = replace(engine.figures, prefix_hit_tokens_total=30, prefix_host_hit_tokens_total=12)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        exported = families((await client.get("/metrics")).text)
    names = ("vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits", "pagefleet:prefix_cache_host_hits")
    assert [exported[name].samples[0].value for name in names] == [30, 30, 12]


async def test_nothing_a_client_sent_shows():
    assert SECRET not in await scrape(requests=1)


# sentence → (query, families in the answer)
SUBSETS = {
    "one family": ("name[]=vllm:kv_cache_usage_perc", {"vllm:kv_cache_usage_perc"}),
    "a counter by its series": ("name[]=vllm:num_preemptions_total", {"vllm:num_preemptions"}),
    "an alias and a histogram": (
        "name[]=vllm:gpu_cache_usage_perc&name[]=vllm:time_to_first_token_seconds",
        {"vllm:gpu_cache_usage_perc", "vllm:time_to_first_token_seconds"},
    ),
    "a name that nobody knows": ("name[]=nope", set()),
}


@pytest.mark.parametrize(("query", "want"), SUBSETS.values(), ids=SUBSETS.keys())
async def test_subsets(query, want):
    assert families(await scrape(f"/metrics?{query}")).keys() == want


async def test_a_loading_engine_has_no_figures_yet():
    async with running_server(None) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.get("/metrics")
    assert reply.status_code == 200
    assert [family for family in families(reply.text).values() if family.samples] == []
