"""The OpenAPI document: complete, without dangling references, and honest about what a body needs."""

from __future__ import annotations

import json


async def test_document(client):
    document = (await client.get("/openapi.json")).json()
    assert document["info"]["title"] == "PageFleet engine"
    assert "$ref" not in json.dumps(
        {path: item["post"]["requestBody"] for path, item in document["paths"].items() if "post" in item}
    )
    bodies = {
        path: item["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path, item in document["paths"].items()
        if "post" in item
    }
    assert {path: schema.get("required", []) for path, schema in bodies.items()} == {
        "/v1/chat/completions": ["messages"],
        "/v1/completions": ["prompt"],
        "/tokenize": [],
        "/detokenize": ["tokens"],
    }
    options = bodies["/v1/completions"]["properties"]["stream_options"]
    assert options["anyOf"][0]["properties"].keys() == {"include_usage", "continuous_usage_stats"}

    for path, schema in bodies.items():
        fields = {name: schema["properties"][name] for name in schema["properties"].keys() - schema.get("required", [])}
        takes_null = {name for name, field in fields.items() if {"type": "null"} in field.get("anyOf", [])}
        takes_anything = {name for name, field in fields.items() if not field.keys() & {"anyOf", "type"}}
        assert fields.keys() == takes_null | takes_anything, path


async def test_every_answer_is_in_the_document(client):
    document = (await client.get("/openapi.json")).json()
    shown = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            answers = operation["responses"]
            shown[method, path] = {status: [*answer.get("content", {})] for status, answer in answers.items()}
    errors = {"4XX": ["application/json"], "5XX": ["application/json"]}
    text, json_alone, streams = ["text/plain"], ["application/json"], ["application/json", "text/event-stream"]
    assert shown == {
        ("get", "/health"): errors | {"200": text, "503": text},
        ("get", "/ready"): errors | {"200": text, "503": text},
        ("get", "/metrics"): errors | {"200": text},
        ("get", "/v1/models"): errors | {"200": json_alone},
        ("get", "/v1/models/{name}"): errors | {"200": json_alone},
        ("get", "/version"): errors | {"200": json_alone},
        ("post", "/v1/chat/completions"): errors | {"200": streams},
        ("post", "/v1/completions"): errors | {"200": streams},
        ("post", "/tokenize"): errors | {"200": json_alone},
        ("post", "/detokenize"): errors | {"200": json_alone},
    }
    refused = document["paths"]["/health"]["get"]["responses"]["4XX"]["content"]["application/json"]["schema"]
    assert set(refused["properties"]["error"]["required"]) == {"message", "type", "param", "code"}


async def test_a_method_that_is_not_served_is_told_which_are(client):
    replies = [await client.request("PATCH", path) for path in ("/health", "/v1/completions", "/v1/models/x")]
    assert [(reply.status_code, reply.headers["allow"]) for reply in replies] == [
        (405, "GET, HEAD"),
        (405, "POST"),
        (405, "GET"),
    ]
