"""`GET /version`: what runs here, and what computes attention once there is an engine."""

from importlib.metadata import version

from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.service import Service


async def test_version_names_the_attention_backend_the_device_and_the_form_of_tool_calls(client):
    reply = await client.get("/version")
    assert reply.json() == {
        "version": version("pagefleet"),
        "attention_backend": "reference",
        "device": "cpu",
        "tool_call_parser": "hermes",
    }


def test_an_engine_that_is_loading_has_no_backend_yet():
    assert Service(limits=Limits()).backend == {}
