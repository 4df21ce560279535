"""Quantities, durations, shares and model URIs as numbers and parts."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_operator.api.model_uri import ModelScheme, ModelSource, is_model_uri, parse_model_uri
from pagefleet_operator.api.quantities import parse_duration, parse_quantity, parse_share

QUANTITIES = {
    "0": Decimal(0),
    "2": Decimal(2),
    "500m": Decimal("0.5"),
    "1.5Gi": Decimal(3 * 2**29),
    "512Mi": Decimal(2**29),
    "4k": Decimal(4000),
    "1G": Decimal(10**9),
    "2e3": Decimal(2000),
    "2E-3": Decimal("0.002"),
    "3E": Decimal(3 * 10**18),
    "1n": Decimal("1e-9"),
    "-1": Decimal(-1),
    ".5Ki": Decimal(512),
}


@pytest.mark.parametrize(("text", "expected"), QUANTITIES.items())
def test_quantities(text, expected):
    assert parse_quantity(text) == expected


@pytest.mark.parametrize("text", ["", "4GB", "1 Gi", "Gi", "1e", "NaN", "--1", "1\n"])
def test_no_quantities(text):
    with pytest.raises(ValueError, match=r"is no quantity: write for example 500m, 2, 512Mi or 4Gi"):
        parse_quantity(text)


DURATIONS = {
    "0s": timedelta(0),
    "100ms": timedelta(milliseconds=100),
    "5m": timedelta(minutes=5),
    "1h30m": timedelta(minutes=90),
    "1h2m3s4ms": timedelta(hours=1, minutes=2, seconds=3, milliseconds=4),
}


@pytest.mark.parametrize(("text", "expected"), DURATIONS.items())
def test_durations(text, expected):
    assert parse_duration(text) == expected


@pytest.mark.parametrize("text", ["", "5", "5 m", "1m1h", "-1s", "1.5h", "5min", "1s\n"])
def test_no_durations(text):
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


@given(st.integers(0, 999), st.integers(0, 999), st.integers(0, 999), st.integers(0, 999))
def test_a_duration_is_the_sum_of_its_parts(hours, minutes, seconds, milliseconds):
    expected = timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    assert parse_duration(f"{hours}h{minutes}m{seconds}s{milliseconds}ms") == expected


@pytest.mark.parametrize(("text", "expected"), [("0", 0.0), ("1", 1.0), ("0.90", 0.9), ("1.0", 1.0)])
def test_shares(text, expected):
    assert parse_share(text) == expected


@pytest.mark.parametrize("text", ["", "1.1", "-0.1", ".5", "90%", "nan", "1e-3"])
def test_no_shares(text):
    with pytest.raises(ValueError, match="is no share"):
        parse_share(text)


URIS = {
    "file:///models/a": ModelSource(scheme=ModelScheme.FILE, authority="", path="/models/a"),
    "file:///models/a/": ModelSource(scheme=ModelScheme.FILE, authority="", path="/models/a"),
    "pvc://claim": ModelSource(scheme=ModelScheme.PVC, authority="claim", path="/"),
    "pvc://claim/a/b.gguf": ModelSource(scheme=ModelScheme.PVC, authority="claim", path="/a/b.gguf"),
    "hf://owner/name": ModelSource(scheme=ModelScheme.HF, authority="owner", path="name"),
    "hf://owner/name@v1/a.gguf": ModelSource(scheme=ModelScheme.HF, authority="owner", path="name@v1/a.gguf"),
    "oci://r.example:5000/a/b:1": ModelSource(scheme=ModelScheme.OCI, authority="r.example:5000", path="a/b:1"),
}


@pytest.mark.parametrize(("uri", "expected"), URIS.items())
def test_model_uris(uri, expected):
    assert parse_model_uri(uri) == expected


NO_URIS = ["", "models/a", "file://", "file:///", "file://host", "file:////a", "pvc://", "pvc://Claim", "hf://name"]
NO_URIS += ["hf://a/b/c", "hf://a--b/c", "hf://a/b@", "hf://a/b@v/../c.gguf", "hf://ä/b", "hf://a/b\n"]


@pytest.mark.parametrize("uri", [*NO_URIS, "s3://a/b", "file:///a/../b", "file:///a b", "pvc://c/./d", "file:///a\n"])
def test_no_model_uris(uri):
    assert not is_model_uri(uri)
