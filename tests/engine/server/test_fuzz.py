"""The short form of `make fuzz`: 2,000 hostile requests against the real engine with a tiny model."""

from __future__ import annotations

import random
from itertools import islice

from tests.engine.server.fuzz import LEAKS, problem_of, run
from tests.engine.server.hostile import Hostile, hostile_requests


async def test_hostile_requests_do_no_harm():
    findings = await run(2_000, seed=20)
    assert findings.problems == []
    assert findings.statuses.keys() >= {200, 400, 404, 405, 431}
    assert findings.calm_rounds > 0
    assert findings.num_probes > 20


def test_the_same_seed_makes_the_same_requests():
    first, second = (list(islice(hostile_requests(random.Random(7)), 50)) for _ in range(2))
    assert first == second
    assert {type(request) for request in first} == {Hostile}


def test_what_it_looks_for_is_found():
    assert problem_of(0, b"") == "no answer"
    assert problem_of(500, b"") == "status 500"
    assert problem_of(400, b"oops") == "an error without the shape"
    assert problem_of(200, b"data: {}\n\n") == "a stream without its end"
    assert LEAKS.search(b"<object at 0x7f0012ab34cd>")
