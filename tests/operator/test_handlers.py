"""Which service an event wakes, and what Kopf is told not to do."""

import itertools

import kopf
import pytest
from kubernetes.aio.client import Configuration

from pagefleet_operator.handlers import build_kopf_settings, build_registry, connection_info, owner_key
from pagefleet_operator.labels import Key
from pagefleet_operator.manifests.ownership import Owner
from pagefleet_operator.manifests.service import build_service

OURS = {"apiVersion": "pagefleet.io/v1alpha1", "kind": "LLMService", "name": "smollm2", "controller": True}
OWNERS = {
    "a child of ours": ([OURS], Key("models", "smollm2")),
    "one of a later version of ours": ([OURS | {"apiVersion": "pagefleet.io/v1"}], Key("models", "smollm2")),
    "one that we only own, but do not control": ([OURS | {"controller": False}], None),
    "one of another group": ([OURS | {"apiVersion": "other.io/v1"}], None),
    "one of a ReplicaSet": ([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "controller": True}], None),
    "an orphan": ([], None),
}


@pytest.mark.parametrize(("references", "want"), OWNERS.values(), ids=OWNERS.keys())
def test_owner_key(references, want):
    assert owner_key({"metadata": {"namespace": "models", "ownerReferences": references}}) == want


def test_what_the_builders_make_is_found_again():
    owner = Owner(key=Key("models", "smollm2"), uid="uid-1")
    assert owner_key(build_service(owner)) == owner.key


def test_no_handler_needs_a_finalizer_or_keeps_progress_on_an_object():
    registry = build_registry(lambda _: None, Configuration())
    assert len(registry._watching.get_all_handlers()) == 4
    assert not registry._changing.get_all_handlers()
    assert not registry._spawning.get_all_handlers()


def test_the_back_off_never_ends_and_is_bounded():
    waits = build_kopf_settings(lambda: 1.0).networking.error_backoffs
    assert list(itertools.islice(iter(waits), 7)) == [1, 2, 4, 8, 15, 15, 15]
    assert list(itertools.islice(iter(waits), 2)) == [1, 2]
    assert not hasattr(waits, "__len__")


def test_only_our_children_are_watched():
    settings = build_kopf_settings(lambda: 0.0)
    assert set(settings.watching.label_selectors.values()) == {"app.kubernetes.io/managed-by=pagefleet-operator"}
    assert len(settings.watching.label_selectors) == 3
    assert settings.peering.standalone
    assert not settings.posting.enabled


async def test_kopf_gets_the_clients_credentials():
    configuration = Configuration()
    configuration.host = "https://10.0.0.1:443"
    configuration.api_key["BearerToken"] = "Bearer abc"
    info = await connection_info(configuration)
    assert (info.server, info.scheme, info.token) == ("https://10.0.0.1:443", "Bearer", "abc")
    assert isinstance(info, kopf.ConnectionInfo)
