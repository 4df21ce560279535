"""Which differences between a living object and its manifest are ours to correct."""

import pytest

from pagefleet_operator.drift import find_drift

WANTED = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "a", "labels": {"ours": "1"}},
    "spec": {"type": "ClusterIP", "selector": {"app": "a"}, "ports": [{"name": "http", "port": 8000}]},
}
IDENTITY = {"uid": "uid-1", "resourceVersion": "7"}


def living(**spec):
    own = {"type": "ClusterIP", "selector": {"app": "a"}, "ports": [{"name": "http", "port": 8000, "nodePort": 3}]}
    metadata = {"name": "a", "labels": {"ours": "1", "theirs": "2"}, **IDENTITY}
    return {"metadata": metadata, "spec": own | {"clusterIP": "10.0.0.1"} | spec, "status": {"loadBalancer": {}}}


CASES = {
    "defaults of the API server and labels of others stay": ({}, None),
    "a changed value is corrected": ({"type": "NodePort"}, {"spec": {"type": "ClusterIP"}}),
    "a selector is corrected as a whole": (
        {"selector": {"app": "a", "more": "b"}},
        {"spec": {"selector": {"more": None}}},
    ),
    "a list with more entries is replaced": (
        {"ports": [{"name": "http", "port": 8000}, {"name": "debug", "port": 1}]},
        {"spec": {"ports": [{"name": "http", "port": 8000}]}},
    ),
}


@pytest.mark.parametrize(("change", "want"), CASES.values(), ids=CASES.keys())
def test_find_drift(change, want):
    expected = None if want is None else want | {"metadata": IDENTITY}
    assert find_drift(living(**change), WANTED) == expected


def test_a_lost_label_comes_back_with_the_preconditions():
    live = living()
    del live["metadata"]["labels"]["ours"]
    assert find_drift(live, WANTED) == {"metadata": {"labels": {"ours": "1"}, **IDENTITY}}
