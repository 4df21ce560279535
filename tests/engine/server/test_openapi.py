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
