"""What a client reads for each kind of wrong request: the exact status and the exact error.

A row is a sentence, the request, the status, the field the error names, its code and its message.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import httpx

from pagefleet_engine.server.testing import FakeEngine, running_server, say

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "hi"}]


class Row(NamedTuple):
    path: str
    body: Any
    status: int
    param: str | None
    code: str | None
    message: str


def plain(message: str, *, param: str | None = None, code: str | None = None, status: int = 400, **fields: Any) -> Row:
    """A completion with one thing wrong."""
    return Row(PLAIN, {"prompt": "a"} | fields, status, param, code, message)


def chat(message: str, *, param: str | None = None, code: str | None = None, status: int = 400, **fields: Any) -> Row:
    """A chat completion with one thing wrong."""
    return Row(CHAT, {"messages": USER} | fields, status, param, code, message)


def unsupported(name: str, value: Any) -> Row:
    message = f"{name} is not supported by this engine: leave it out"
    return chat(message, param=name, code="unsupported_parameter", **{name: value})


IDS = "0 to 259"
ROWS = {
    # prompts
    "no prompt": Row(PLAIN, {}, 400, "prompt", None, "prompt: is required"),
    "prompt null": plain(
        "prompt: must be a string, a list of strings, or lists of token ids", param="prompt", prompt=None
    ),
    "prompt a number": plain(
        "prompt: must be a string, a list of strings, or lists of token ids", param="prompt", prompt=5
    ),
    "CVE-2024-8768: an empty prompt": plain("prompt: must not be empty", param="prompt", prompt=""),
    "CVE-2024-8768: no prompts": plain("prompt: must not be empty", param="prompt", prompt=[]),
    "CVE-2024-8768: a prompt without tokens": plain("prompt: must not be empty", param="prompt", prompt=[[]]),
    "CVE-2024-8768: an empty string in a list": plain("prompt: must not be empty", param="prompt", prompt=["a", ""]),
    "CVE-2026-73559: too many prompts": plain(
        "prompt: has 5 entries; at most 4 are served", param="prompt", prompt=["a"] * 5
    ),
    "true is no token": plain("prompt: entries must be strings or lists of token ids", param="prompt", prompt=[[True]]),
    "a float is no token": plain("prompt: entries must be strings or lists of token ids", param="prompt", prompt=[1.0]),
    "a token id of -1": plain(f"prompt: -1 is no token id: the model's are {IDS}", param="prompt", prompt=[1, -1]),
    "a token id equal to the vocabulary size": plain(
        f"prompt: 260 is no token id: the model's are {IDS}", param="prompt", prompt=[260]
    ),
    "a token id of 2^63": plain(
        f"prompt: {2**63} is no token id: the model's are {IDS}", param="prompt", prompt=[[1], [2**63]]
    ),
    # messages
    "no messages": Row(CHAT, {}, 400, "messages", None, "messages: is required"),
    "CVE-2024-8768: messages []": chat(
        "messages: must be a list of at least one message", param="messages", messages=[]
    ),
    "messages a string": chat("messages: must be a list of at least one message", param="messages", messages="hi"),
    "too many messages": chat("messages: has 5 entries; at most 4 are served", param="messages", messages=USER * 5),
    "a message that is a string": chat(
        "messages.0: must be an object with role and content", param="messages.0", messages=["hi"]
    ),
    "an unknown role": chat(
        "messages.1.role: must be one of system, developer, user, assistant, tool",
        param="messages.1.role",
        messages=[*USER, {"role": "root", "content": "x"}],
    ),
    "no content": chat(
        "messages.0.content: must be a string or a list of text parts",
        param="messages.0.content",
        messages=[{"role": "user"}],
    ),
    "CVE-2025-6242: an image by address": chat(
        'messages.0.content: only parts like {"type": "text", "text": "..."} are served',
        param="messages.0.content",
        messages=[
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]}
        ],
    ),
    "a name that is a number": chat(
        "messages.0.name: must be a string", param="messages.0.name", messages=[USER[0] | {"name": 1}]
    ),
    # the model
    "an unknown model": chat(
        "model 'gpt' does not exist here: use fake", param="model", code="model_not_found", status=404, model="gpt"
    ),
    "a model name of 10,000 characters is quoted in part": plain(
        f"model '{'a' * 80}'... does not exist here: use fake",
        param="model",
        code="model_not_found",
        status=404,
        model="a" * 3_000,
    ),
    "model a number": chat("model: input should be a valid string", param="model", model=1),
    # types
    "n true": plain("n: input should be a valid integer", param="n", n=True),
    "n a string": plain("n: input should be a valid integer", param="n", n="7"),
    "n a float": plain("n: input should be a valid integer", param="n", n=1.5),
    "stream a number": plain("stream: input should be a valid boolean", param="stream", stream=1),
    "temperature a string": plain(
        "temperature: input should be a valid number", param="temperature", temperature="hot"
    ),
    "logit_bias a list": plain("logit_bias: input should be a valid dictionary", param="logit_bias", logit_bias=[1]),
    # ranges
    "temperature below 0": plain("temperature is -0.1: must be 0 to 100", param="temperature", temperature=-0.1),
    "temperature 1e308": plain("temperature is 1e+308: must be 0 to 100", param="temperature", temperature=1e308),
    "top_p 0": plain(
        "top_p 0 leaves no token to sample: use temperature 0 for the most likely one", param="top_p", top_p=0
    ),
    "top_p above 1": plain("top_p is 1.01: must be 0 to 1", param="top_p", top_p=1.01),
    "top_k -2": plain("top_k is -2: must be 1 to 2147483648", param="top_k", top_k=-2),
    "min_p -1": plain("min_p is -1.0: must be 0 to 1", param="min_p", min_p=-1.0),
    "repetition_penalty 0": plain(
        "repetition_penalty is 0.0: must be 0.01 to 100", param="repetition_penalty", repetition_penalty=0
    ),
    "repetition_penalty 1e-300": plain(
        "repetition_penalty is 1e-300: must be 0.01 to 100", param="repetition_penalty", repetition_penalty=1e-300
    ),
    "presence_penalty 3": plain(
        "presence_penalty is 3.0: must be -2 to 2", param="presence_penalty", presence_penalty=3
    ),
    "max_tokens 0": plain("max_tokens: 0 only with echo or prompt_logprobs", param="max_tokens", max_tokens=0),
    "max_completion_tokens 0 is named as the client does": chat(
        "max_completion_tokens: 0 only with prompt_logprobs", param="max_completion_tokens", max_completion_tokens=0
    ),
    "max_tokens -1": plain("max_tokens is -1: must be 0 to 2147483648", param="max_tokens", max_tokens=-1),
    "min_tokens -1": plain("min_tokens is -1: must be 0 to 2147483648", param="min_tokens", min_tokens=-1),
    "min_tokens above max_tokens": plain(
        "min_tokens 3 is above max_tokens 2", param="min_tokens", min_tokens=3, max_tokens=2
    ),
    "seed 2^63": plain(f"seed is {2**63}: must be -9.22337203685e+18 to 9.22337203685e+18", param="seed", seed=2**63),
    "CVE-2026-34756: n too large": plain("n: 5: must be 1 to 4", param="n", n=5),
    "CVE-2026-34756: n times prompts too large": plain(
        "n: 2 choices for 4 prompts; at most 6 in all", param="n", n=2, prompt=["a"] * 4
    ),
    "n 0": plain("n: 0: must be 1 to 4", param="n", n=0),
    # stop
    "an empty stop string": plain("stop: each string must have 1 to 8 characters", param="stop", stop=""),
    "a long stop string": plain("stop: each string must have 1 to 8 characters", param="stop", stop=["x" * 9]),
    "too many stop strings": plain("stop: has 3 strings; at most 2 are served", param="stop", stop=["a", "b", "c"]),
    "stop a number": plain("stop: must be a string or a list of strings", param="stop", stop=3),
    "PYSEC-2026-145: a stop token outside the vocabulary": plain(
        f"stop_token_ids has token id 260: the model's ids are {IDS}", param="stop_token_ids", stop_token_ids=[260]
    ),
    "too many stop tokens": plain(
        "stop_token_ids: has 3 ids; at most 2 are served", param="stop_token_ids", stop_token_ids=[1, 2, 3]
    ),
    # logits
    "PYSEC-2026-145: a bias outside the vocabulary": plain(
        f"logit_bias has token id 260: the model's ids are {IDS}", param="logit_bias", logit_bias={"260": 1}
    ),
    "a bias key that is no number": plain("logit_bias: '-1' is no token id", param="logit_bias", logit_bias={"-1": 1}),
    "a bias of 101": plain("logit_bias is 101.0: must be -100 to 100", param="logit_bias", logit_bias={"1": 101}),
    "too many biases": plain(
        "logit_bias: has 3 entries; at most 2", param="logit_bias", logit_bias={"1": 1, "2": 1, "3": 1}
    ),
    "CVE-2026-116173: too many logprobs": plain("logprobs: 4: must be 0 to 3", param="logprobs", logprobs=4),
    "logprobs -1": plain("logprobs: -1: must be 0 to 3", param="logprobs", logprobs=-1),
    "too many top_logprobs": chat(
        "top_logprobs: 4: must be 0 to 3", param="top_logprobs", logprobs=True, top_logprobs=4
    ),
    "top_logprobs without logprobs": chat(
        "top_logprobs: only with logprobs set to true", param="top_logprobs", top_logprobs=1
    ),
    "stream_options without a stream": plain(
        "stream_options: only with stream set to true", param="stream_options", stream_options={"include_usage": True}
    ),
    # length
    "prompt and answer one token too long": plain(
        "the prompt is too long: the maximum context length is 64 tokens, but this request needs "
        "65: 2 in the prompt and 63 for the answer; "
        "shorten the prompt or ask for fewer tokens",
        param="prompt",
        code="context_length_exceeded",
        max_tokens=63,
    ),
    "a prompt that leaves no room": chat(
        "the prompt is too long: the maximum context length is 64 tokens, but this request needs "
        "88: 87 in the prompt and 1 for the answer; "
        "shorten the prompt or ask for fewer tokens",
        param="messages",
        code="context_length_exceeded",
        messages=[{"role": "user", "content": "x" * 69}],
    ),
    "CVE-2025-52566: a text that no tokenizer needs to see": plain(
        "the prompt is too long: the maximum context length is 64 tokens, and prompt has 3000 characters: "
        "more than 2048 cannot fit; shorten it",
        param="prompt",
        code="context_length_exceeded",
        prompt="x" * 3_000,
    ),
    # what is known and not served
    "CVE-2025-62426: chat_template_kwargs": chat(
        "chat_template_kwargs.chat_template: has a meaning of its own here: leave it out",
        param="chat_template_kwargs.chat_template",
        chat_template_kwargs={"chat_template": "x"},
    ),
    "CVE-2025-61620: chat_template": unsupported("chat_template", "{{ 7 * 7 }}"),
    "CVE-2025-62164: prompt_embeds": unsupported("prompt_embeds", "AAAA"),
    "CVE-2024-8939: best_of": plain("best_of: 2147483648: must be 1 to 4", param="best_of", best_of=2**31),
    "CVE-2026-105756: a long cache_salt": plain(
        "cache_salt: must have 1 to 256 characters", param="cache_salt", cache_salt="é" * 257
    ),
    "an empty cache_salt": plain("cache_salt: must have 1 to 256 characters", param="cache_salt", cache_salt=""),
    "best_of 0": plain("best_of: 0: must be 1 to 4", param="best_of", best_of=0),
    "best_of below n": plain("best_of 2 is below n 3", param="best_of", best_of=2, n=3),
    "best_of in a stream": plain(
        "best_of: the best are known at the end only: not with stream", param="best_of", best_of=2, stream=True
    ),
    "best_of of many prompts": plain(
        "best_of: 4 choices for 2 prompts; at most 6 in all", param="best_of", best_of=4, prompt=["a", "b"]
    ),
    "beam_width without a beam search": plain(
        "beam_width: only with use_beam_search set to true", param="beam_width", beam_width=2
    ),
    "length_penalty without a beam search": chat(
        "length_penalty: only with use_beam_search set to true", param="length_penalty", length_penalty=0.5
    ),
    "a beam search in a stream": plain(
        "stream: not served together with use_beam_search: leave it out",
        param="stream",
        use_beam_search=True,
        stream=True,
    ),
    "a beam search that samples": chat(
        "temperature: not served together with use_beam_search: leave it out",
        param="temperature",
        use_beam_search=True,
        temperature=0.7,
    ),
    "a beam search with logprobs": chat(
        "logprobs: not served together with use_beam_search: leave it out",
        param="logprobs",
        use_beam_search=True,
        logprobs=True,
    ),
    "more choices than beams": plain(
        "beam_width: 2: must be 3 (n) to 4", param="beam_width", use_beam_search=True, beam_width=2, n=3
    ),
    "CVE-2024-8939: beam_width": plain(
        "beam_width: 2147483648: must be 1 (n) to 4", param="beam_width", use_beam_search=True, beam_width=2**31
    ),
    "a length_penalty out of bounds": plain(
        "length_penalty: must be -10 to 10", param="length_penalty", use_beam_search=True, length_penalty=1e300
    ),
    "beams of many prompts": plain(
        "beam_width: 4 choices for 2 prompts; at most 6 in all",
        param="beam_width",
        use_beam_search=True,
        beam_width=4,
        prompt=["a", "b"],
    ),
    "priority 101": plain(
        "priority: 101: must be -100 to 100; lower is served earlier", param="priority", priority=101
    ),
    "priority -101": chat(
        "priority: -101: must be -100 to 100; lower is served earlier", param="priority", priority=-101
    ),
    "allowed_token_ids": unsupported("allowed_token_ids", [2**31]),
    "bad_words": unsupported("bad_words", [""]),
    "CVE-2026-7304: logits_processors": unsupported("logits_processors", ["os.system"]),
    "a message with a function call of the old kind": chat(
        "messages.0.function_call is not supported by this engine: leave it out",
        param="messages.0.function_call",
        code="unsupported_parameter",
        messages=[{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}],
    ),
}


async def test_each_row(small_limits):
    """All rows on one connection: an error must not spoil the requests after it."""
    engine = FakeEngine(say("x"), max_model_len=64)
    wrong = {}
    async with running_server(engine, limits=small_limits) as server, httpx.AsyncClient(base_url=server.url) as client:
        for sentence, row in ROWS.items():
            reply = await client.post(row.path, json=row.body)
            kind = "invalid_request_error"
            want = {"error": {"message": row.message, "type": kind, "param": row.param, "code": row.code}}
            if (reply.status_code, reply.json()) != (row.status, want):
                wrong[sentence] = (reply.status_code, reply.json(), row)
        assert (await client.post(PLAIN, json={"prompt": "a"})).status_code == 200
    assert wrong == {}
    assert len(engine.prompts) == 1


# sentence → (method, path, body, headers, status, code)
HTTP = {
    "CVE-2026-9540: an unknown path": ("GET", "/v2/chat", b"", {}, 404, "not_found"),
    "CVE-2026-9540: a path above the root": ("GET", "/../../etc/passwd", b"", {}, 404, "not_found"),
    "a slash too many": ("POST", "//v1/completions", b"{}", {}, 404, "not_found"),
    "a slash at the end": ("POST", "/v1/completions/", b"{}", {}, 404, "not_found"),
    "a method that is not served": ("GET", "/v1/completions", b"", {}, 405, "method_not_allowed"),
    "TRACE": ("TRACE", "/health", b"", {}, 405, "method_not_allowed"),
    "an unknown model by path": ("GET", "/v1/models/nope", b"", {}, 404, "model_not_found"),
    "a form instead of JSON": (
        "POST",
        PLAIN,
        b"a=b",
        {"content-type": "application/x-www-form-urlencoded"},
        415,
        "unsupported_media_type",
    ),
    "malformed JSON": ("POST", PLAIN, b"{", {}, 400, "invalid_json"),
    "a body larger than declared possible": ("POST", PLAIN, b"x" * 4_097, {}, 413, "body_too_large"),
    "a target that is too long": ("GET", "/" + "a" * 9_000, b"", {}, 414, "uri_too_long"),
    "CVE-2025-48956: 101 headers": ("GET", "/v1/models", b"", {f"x-{i}": "a" for i in range(101)}, 431, None),
    "CVE-2025-48956: headers of 64 KiB and a bit": (
        "GET",
        "/v1/models",
        b"",
        {"x-a": "a" * 65_600},
        431,
        "headers_too_large",
    ),
    "CVE-2025-48956: one header of 1 MiB": ("GET", "/v1/models", b"", {"x-a": "a" * 2**20}, 431, None),
}


async def test_each_http_row(small_limits):
    wrong = {}
    async with running_server(FakeEngine(say("x")), limits=small_limits) as server:
        for sentence, (method, path, body, headers, status, code) in HTTP.items():
            async with httpx.AsyncClient() as client:
                request = client.build_request(method, server.url, content=body, headers=headers)
                request.url = request.url.copy_with(raw_path=path.encode())
                reply = await client.send(request)
            got_code = reply.json()["error"]["code"] if reply.content else None
            if (reply.status_code, got_code) != (status, code):
                wrong[sentence] = (reply.status_code, got_code)
    assert wrong == {}


async def test_a_full_queue_says_when_to_come_back():
    engine = FakeEngine(say("x"), max_running=0)
    async with running_server(engine) as server, httpx.AsyncClient(base_url=server.url) as client:
        for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": "a", "n": 3}):
            reply = await client.post(PLAIN, json=body)
            assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")
            assert reply.json()["error"] == {
                "message": "0 requests wait already",
                "type": "rate_limit_error",
                "param": None,
                "code": "queue_full",
            }


async def test_a_loading_server_answers_probes_and_refuses_the_rest():
    async with running_server(None) as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/health")).status_code == 200
        ready = await client.get("/ready")
        assert (ready.status_code, ready.text) == (503, "loading\n")
        reply = await client.post(PLAIN, json={"prompt": "a"})
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert reply.json()["error"]["code"] == "loading"


async def test_a_fault_of_ours_is_500_without_details(caplog):
    def broken(_prompt, _params):
        raise RuntimeError("secret detail")

    async with running_server(FakeEngine(broken)) as server, httpx.AsyncClient(base_url=server.url) as client:
        reply = await client.post(PLAIN, json={"prompt": "a"})
        assert (await client.get("/health")).status_code == 200
    assert reply.status_code == 500
    assert reply.json()["error"]["message"] == "the engine failed on this request"
    assert "secret detail" in caplog.text
