"""What a scrape costs does not grow with what was served: the same series and bytes, but for the digits of values."""

from __future__ import annotations

import random
import re

from pagefleet_engine.contract.control import RouteConfig
from pagefleet_engine.contract.metrics import Outcome
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.errors import ApiError, invalid, queue_full, unauthorised, unavailable, unknown_model
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.metrics import RequestTimer
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.testing import FakeEngine, say

ROUTES = (
    RouteConfig(name="default", model="fake", precision=Precision.BF16),
    RouteConfig(name="a", model="fake-a", structured="validate", precision=Precision.FP8_E4M3, control_share=0.05),
    RouteConfig(name="b", model="fake-b", precision=Precision.INT8),
)


def serve_one(service: Service, rng: random.Random, number: int) -> None:
    """Everything that one request, of whatever kind and with whatever names in it, leaves in the metrics."""
    metrics, route = service.metrics, rng.choice(ROUTES)
    pick = service.routes.pick(route.model, rng.randrange(1, 500))
    refusals: list[ApiError] = [
        invalid(f"wrong {number}", param=f"field{number}", code=f"code{number}"),
        unknown_model(f"model-{number}", ("fake",)),
        queue_full(f"{number} wait", number % 60),
        unauthorised("no", f"key{number}"),
        unavailable("no", rng.choice(["loading", "draining", "aborted", "engine_stopped"])),
    ]
    if rng.random() < 0.2:
        body = rng.choice(refusals).body
        metrics.count_refused(body.status, body.code)
        return
    metrics.count_route(pick.route, pick.precision)
    timer = RequestTimer(metrics, arrived_at=0.0)
    now = 0.0
    for _ in range(rng.randrange(1, 5)):
        now += rng.expovariate(1.0)
        timer.tokens(rng.randrange(1, 4), now=now)
    timer.finished(rng.choice(list(FinishReason)), now=now)
    mixed = rng.random() < 0.1
    constrained = route.structured != "validate"
    metrics.count_structured(pick.route, None if mixed else pick.precision, constrained, rng.choice(list(Outcome)))


def shape(service: Service) -> str:
    """The text of a scrape with every value replaced."""
    return re.sub(r" [0-9.e+-]+$", " 0", service.metrics.render().decode(), flags=re.MULTILINE)


def test_ten_thousand_requests_are_as_cheap_to_scrape_as_a_hundred():
    service, rng, shapes = Service(limits=Limits()), random.Random(3), []
    service.attach(FakeEngine(say("x")), ROUTES)
    for until in (range(100), range(100, 10_000)):
        for number in until:
            serve_one(service, rng, number)
        shapes.append(shape(service))
    service.text.close()
    service.structured.close()
    assert shapes[0].count("\n") == shapes[1].count("\n")
    assert shapes[0] == shapes[1]
