"""Random forms, most of them broken: the engine answers each with 200, 400 or 429, and goes on."""

from __future__ import annotations

import random

from tests.engine.server.hostile_forms import random_form
from tests.engine.server.scripted import VALIDATING, scripted


async def test_random_forms_do_no_harm():
    rng = random.Random(5)
    statuses: dict[int, int] = {}
    wrong = []
    async with scripted(noise=4.0) as running:
        for _ in range(400):
            form = random_form(rng)
            form |= {"max_tokens": 8, "stream": rng.random() < 0.3, "model": rng.choice([None, VALIDATING])}
            reply = await running.say('{"a": "b"}', **form)
            statuses[reply.status_code] = statuses.get(reply.status_code, 0) + 1
            if reply.status_code not in (200, 400) or "internal_error" in reply.text:
                wrong.append((reply.status_code, reply.text, form))
        assert wrong == []
        assert statuses[200] > 50
        assert statuses[400] > 50
        assert (await running.say("calm")).json()["choices"][0]["message"]["content"]
