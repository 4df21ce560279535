"""The real engine over a model that repeats what it is told, with or without errors, behind the real server."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import NamedTuple

import httpx
from prometheus_client.parser import text_string_to_metric_families

from pagefleet_engine.api import ModelInfo, Tokenizer
from pagefleet_engine.async_engine import AsyncEngine
from pagefleet_engine.contract.control import RouteConfig
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import running_server
from pagefleet_engine.testing import TINY, ByteTokenizer, ScriptedExecutor, tiny_core, tiny_decoder

CHAT = "/v1/chat/completions"
VALIDATING = "checked"
"""Model name of the route that only validates."""
ROUTES = (
    RouteConfig(name="default", model="scripted", precision=Precision.BF16),
    RouteConfig(name="checked", model=VALIDATING, precision=Precision.BF16, structured="validate"),
)
MAX_LEN = 4096


class Running(NamedTuple):
    client: httpx.AsyncClient
    url: str
    service: Service

    async def say(self, text: str, **fields) -> httpx.Response:
        """Ask the model to say `text`."""
        body = {"messages": ask(text), "temperature": 0, "max_tokens": 512} | fields
        return await self.client.post(CHAT, json=body)

    async def counts(self) -> dict[tuple[str, str, str, str], int]:
        """Answers by (route, precision, constrained, outcome), without zeros."""
        text = (await self.client.get("/metrics", params={"name[]": "pagefleet:structured_outputs_total"})).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        names = ("route", "precision", "constrained", "outcome")
        return {tuple(s.labels[name] for name in names): int(s.value) for s in samples if s.value}


def ask(text: str) -> list[dict]:
    """A dialogue that makes the scripted model say `text`."""
    return [{"role": "user", "content": f"[[{text}]]"}]


def last_request(prompt: str) -> str:
    """What the last [[...]] of the prompt holds; nothing where there is none."""
    found = re.findall(r"\[\[(.*?)\]\](?=\n)", prompt, re.DOTALL)
    return found[-1] if found else ""


@asynccontextmanager
async def scripted(
    *,
    noise: float = 0.0,
    seed: int = 0,
    limits: Limits | None = None,
    tool_call_parser: str = "auto",
    tokenizer: Tokenizer | None = None,
) -> AsyncIterator[Running]:
    """A running server; its model says what the last message asks for between double brackets."""
    core = tiny_core(
        decoder=tiny_decoder(replace(TINY, context_len=MAX_LEN)),
        num_frames=512,
        max_model_len=MAX_LEN,
        max_num_batched_tokens=8192,
        executor_of=lambda _runner: ScriptedExecutor(last_request, noise=noise, seed=seed),
    )
    info = ModelInfo(id="scripted", max_model_len=MAX_LEN, vocab_size=260, eos_token_ids=ByteTokenizer.eos_token_ids)
    engine = AsyncEngine(core, model_info=info, tokenizer=tokenizer or ByteTokenizer())
    service = Service(limits=limits or Limits(), tool_call_parser=tool_call_parser)
    service.attach(engine, ROUTES)
    async with (
        running_server(engine, service=service) as server,
        httpx.AsyncClient(base_url=server.url, timeout=60) as client,
    ):
        service.set_routes(ROUTES)
        yield Running(client, server.url, server.service)
