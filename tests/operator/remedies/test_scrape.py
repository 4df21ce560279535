"""What is read from a scrape: values, and for everything else why there is none. Hostile text never raises."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.contract.control import RouteConfig
from pagefleet_engine.contract.metrics import REMEDY_METRICS, Metric
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.metrics import Outcome, ServerMetrics
from pagefleet_operator.engine_client import MAX_REPLY
from pagefleet_operator.remedies.readings import COUNTERS, GAUGES, HISTOGRAMS, Buckets, Readings, ScrapeFailed, Verdicts
from pagefleet_operator.remedies.samples import Invalid, Missing, Value
from pagefleet_operator.remedies.scrape import MAX_LINES, STRUCTURED, parse_metrics

RUNNING = "vllm:num_requests_running"
USAGE = "vllm:kv_cache_usage_perc"
SWAPS = "pagefleet:swaps_total"
TTFT = "vllm:time_to_first_token_seconds"


def gauge(name, *values):
    return f"# TYPE {name} gauge\n" + "".join(f'{name}{{model_name="m"}} {value}\n' for value in values)


def counter(name, *series):
    return f"# TYPE {name} counter\n" + "".join(f"{name}{{{labels}}} {value}\n" for labels, value in series)


GAUGE = {
    "a number": (gauge(RUNNING, 7), Value(7.0)),
    "zero is a number": (gauge(RUNNING, 0), Value(0.0)),
    "not sent": ("", Missing("the engine did not send it")),
    "NaN": (gauge(RUNNING, "NaN"), Invalid("it is nan")),
    "infinite": (gauge(RUNNING, "+Inf"), Invalid("it is inf")),
    "too large for a float": (gauge(RUNNING, "1e999"), Invalid("it is inf")),
    "negative": (gauge(RUNNING, -1), Invalid("it is -1, which is out of range")),
    "half a request": (gauge(RUNNING, 1.5), Invalid("it is 1.5, not a whole number")),
    "sent twice": (gauge(RUNNING, 3, 3), Invalid("2 series of it were sent")),
    "another model's series beside it": (
        gauge(RUNNING, 3) + f'{RUNNING}{{model_name="other"}} 5\n',
        Invalid("2 series of it were sent"),
    ),
    "of another type": (
        gauge(RUNNING, 3).replace("gauge", "histogram"),
        Invalid("it was sent as unknown, not as gauge"),
    ),
    "a cap of 0": (gauge(Metric.CAP, 0), None),
    "without a type": (
        f"{RUNNING} 3\n",
        Invalid("it was sent as unknown, not as gauge"),
    ),
}


@pytest.mark.parametrize(("text", "want"), GAUGE.values(), ids=GAUGE.keys())
def test_gauges(text, want):
    found = parse_metrics(text)
    assert isinstance(found, Readings)
    if want is None:
        assert found.gauges[Metric.CAP] == Invalid("it is 0, which is out of range")
    else:
        assert found.gauges[Metric.REQUESTS_RUNNING] == want


def test_a_usage_above_one_is_no_usage():
    found = parse_metrics(gauge(USAGE, 97))
    assert found.gauges[Metric.KV_CACHE_USAGE] == Invalid("it is 97, which is out of range")


def test_of_refusals_only_those_of_a_full_queue_count():
    name = Metric.REFUSED
    text = counter(name, ('reason="queue_full"', 3), ('reason="invalid"', 50))
    assert parse_metrics(text).counters[name] == Value(3.0)


def test_requests_are_counted_over_all_reasons():
    name = Metric.REQUEST_SUCCESS
    text = counter(name, ('finished_reason="stop"', 3), ('finished_reason="length"', 4))
    assert parse_metrics(text).counters[name] == Value(7.0)


COUNTER = {
    "a number": (counter(SWAPS, ("", 3)), Value(3.0)),
    "sent twice": (counter(SWAPS, ("", 3), ("", 3)), Invalid("2 series of it were sent")),
    "negative": (counter(SWAPS, ("", -3)), Invalid("it is -3, which is out of range")),
    "NaN": (counter(SWAPS, ("", "NaN")), Invalid("it is nan")),
}


@pytest.mark.parametrize(("text", "want"), COUNTER.values(), ids=COUNTER.keys())
def test_counters(text, want):
    assert parse_metrics(text).counters[Metric.SWAPS] == want


def histogram(*rows):
    return f"# TYPE {TTFT} histogram\n" + "".join(f'{TTFT}_bucket{{le="{bound}"}} {count}\n' for bound, count in rows)


HISTOGRAM = {
    "in any order": (histogram(("+Inf", 5), ("0.1", 2)), Buckets((0.1, float("inf")), (2.0, 5.0))),
    "that shrinks": (histogram(("0.1", 5), ("+Inf", 2)), Invalid("its buckets do not grow")),
    "without an end": (histogram(("0.1", 5)), Invalid("its buckets are not those of one histogram")),
    "with a bound that is no number": (histogram(("x", 5), ("+Inf", 5)), None),
    "with a NaN": (histogram(("0.1", "NaN"), ("+Inf", 5)), Invalid("it is nan")),
    "with a bound twice": (
        histogram(("0.1", 1), ("0.10", 2), ("+Inf", 5)),
        Invalid("its buckets are not those of one histogram"),
    ),
    "not sent": ("", Missing("the engine did not send it")),
}


@pytest.mark.parametrize(("text", "want"), HISTOGRAM.values(), ids=HISTOGRAM.keys())
def test_histograms(text, want):
    found = parse_metrics(text)
    if want is None:
        assert isinstance(found, ScrapeFailed) or isinstance(found.histograms[Metric.TIME_TO_FIRST_TOKEN], Invalid)
    else:
        assert found.histograms[Metric.TIME_TO_FIRST_TOKEN] == want


LABELS = 'route="tools",precision="bf16",constrained="false",outcome="valid"'
STRUCTURED_CASES = {
    "by route, precision, constrained and outcome": (
        counter(STRUCTURED, (LABELS, 4)),
        {Verdicts("tools", "bf16", False, "valid"): 4.0},
    ),
    "a series without a label": (counter(STRUCTURED, ('route="tools"', 4)), Invalid("one of its series lacks a label")),
    "a series twice": (
        counter(STRUCTURED, (LABELS, 4), (LABELS, 5)),
        Invalid("one of its series was sent twice"),
    ),
    "not sent": ("", Missing("the engine did not send it")),
}


@pytest.mark.parametrize(("text", "want"), STRUCTURED_CASES.values(), ids=STRUCTURED_CASES.keys())
def test_structured_outputs(text, want):
    assert parse_metrics(text).structured == want


BROKEN = ["{", "a{", 'a{b="c" 1', "a b c d e", "# TYPE", "\x00", 'a{b="\\', "<html>502</html>", "a{b=c} 1"]


@pytest.mark.parametrize("text", BROKEN)
def test_text_that_is_no_metrics_makes_nothing_known(text):
    found = parse_metrics(text)
    if isinstance(found, Readings):
        assert all(isinstance(sample, Missing) for sample in (*found.gauges.values(), *found.counters.values()))
    else:
        assert "text format" in found.why


def test_lines_that_were_not_asked_for_are_not_parsed():
    noise = "a 1\n# HELP b {\nvllm:num_requests_running_not 3\n" + "x{" * 1000 + "\n"
    found = parse_metrics(noise + gauge(RUNNING, 7) + noise + counter(SWAPS, ("", 3)))
    assert (found.gauges[Metric.REQUESTS_RUNNING], found.counters[Metric.SWAPS]) == (Value(7.0), Value(3.0))


def test_more_lines_than_an_engine_has_are_not_parsed():
    message = f"the reply has {MAX_LINES + 2} lines of metrics, and at most {MAX_LINES} are read"
    assert parse_metrics(gauge(RUNNING, *range(MAX_LINES + 1))) == ScrapeFailed(message)


def test_an_engine_with_32_routes_and_every_kind_of_answer_is_read_and_four_times_as_much_is_allowed():
    metrics = ServerMetrics(stats=lambda: None, limits=Limits())
    metrics.set_model("m" * 20)
    names = [f"route-{number:014}" for number in range(32)]
    metrics.set_routes(
        RouteConfig(name=name, model=name, precision="fp8_e4m3", structured="validate") for name in names
    )
    usual = len(metrics.render(REMEDY_METRICS))
    for name, precision, outcome in product(names, (Precision.FP8_E4M3, Precision.BF16, None), Outcome):
        metrics.count_structured(name, precision, True, outcome)
    everything = metrics.render(REMEDY_METRICS)
    assert 4 * usual < MAX_REPLY
    assert len(parse_metrics(everything.decode()).structured) == 32 * 3 * 2 * len(Outcome)
    assert everything.count(b"\n") * 4 < MAX_LINES


fragments = st.sampled_from(
    [
        *(
            RUNNING,
            SWAPS,
            TTFT,
            STRUCTURED,
            "_bucket",
            "{",
            "}",
            'le="',
            '"',
            ",",
            "=",
            " ",
            "\n",
            "NaN",
            "-1",
            "1e999",
        ),
        *("7", "# TYPE ", "# HELP ", "gauge", "counter", "histogram", "\\", "\\n", "\x00", "1 2 3", "le", "+Inf"),
    ]
)


@given(st.lists(fragments | st.text(max_size=8), max_size=60).map("".join))
def test_hostile_text_never_raises(text):
    found = parse_metrics(text)
    assert isinstance(found, ScrapeFailed | Readings)
    if isinstance(found, Readings):
        assert set(found.gauges) == set(GAUGES)
        assert set(found.counters) == set(COUNTERS)
        assert set(found.histograms) == set(HISTOGRAMS)


def test_what_the_engine_sends_before_any_request_is_read_as_zeros():
    metrics = ServerMetrics(stats=lambda: None, limits=Limits())
    metrics.set_model("tiny")
    found = parse_metrics(metrics.render().decode())
    assert isinstance(found, Readings)
    assert found.counters[Metric.REFUSED] == Value(0.0)
    assert found.counters[Metric.REQUEST_SUCCESS] == Value(0.0)
    assert isinstance(found.histograms[Metric.INTER_TOKEN_LATENCY], Buckets)
