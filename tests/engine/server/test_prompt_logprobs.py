"""Log probabilities of prompts over HTTP: `echo` with `logprobs` as OpenAI's clients and scorers send it, and vLLM's
`prompt_logprobs`; with a scripted engine for the shapes and with the real one for the values."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from pagefleet_engine.server.testing import FakeEngine, running_server, say
from pagefleet_engine.testing import ByteTokenizer, naive_logits, tiny_decoder
from tests.engine.server.tiny import running_tiny_engine

PLAIN, CHAT = "/v1/completions", "/v1/chat/completions"
BOS, EOS = 256, 257
ECHO = {"echo": True, "logprobs": 1}


async def ask(client, path=PLAIN, **body):
    reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


async def test_an_echo_begins_with_the_prompt_and_null(client):
    [choice] = (await ask(client, prompt="ab", max_tokens=2, **ECHO))["choices"]
    assert choice == {
        "index": 0,
        "text": "abHe",
        "logprobs": {
            "tokens": ["<256>", "a", "b", "H", "e"],
            "token_logprobs": [None, -0.5, -0.5, -0.5, -0.5],
            "top_logprobs": [None, {"a": -0.5}, {"b": -0.5}, {"H": -0.5}, {"e": -0.5}],
            "text_offset": [0, 0, 1, 2, 3],
        },
        "finish_reason": "length",
        "stop_reason": None,
    }


async def test_no_token_may_be_generated(client, hello):
    reply = await ask(client, prompt=["ab", [99, 100, 101]], max_tokens=0, **ECHO)
    assert [choice["text"] for choice in reply["choices"]] == ["ab", "cde"]
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["length"] * 2
    assert [choice["logprobs"]["tokens"] for choice in reply["choices"]] == [["<256>", "a", "b"], ["c", "d", "e"]]
    assert [choice["logprobs"]["text_offset"] for choice in reply["choices"]] == [[0, 0, 1], [0, 1, 2]]
    assert reply["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 6,
        "completion_tokens": 0,
        "total_tokens": 6,
        "prompt_tokens_details": None,
    }
    [bare] = (await ask(client, prompt="ab", max_tokens=0, echo=True))["choices"]
    assert (bare["text"], bare["logprobs"], bare["finish_reason"]) == ("ab", None, "length")
    assert hello.service.engine.sampling[-1].prompt_logprobs is None


# sentence → (prompt, its text in the answer, offsets of its tokens)
OFFSETS = {
    "bytes of one character begin where it does": ("é!", "é!", [0, 0, 0, 1]),
    "token ids show special tokens": ([BOS, 97, EOS, 98], "<256>a<257>b", [0, 5, 6, 11]),
    "half a character at the end": ([97, 195], "a\ufffd", [0, 1]),
    "one token": ([97], "a", [0]),
}


@pytest.mark.parametrize(("prompt", "text", "offsets"), OFFSETS.values(), ids=OFFSETS.keys())
async def test_offsets_are_places_in_the_text(client, prompt, text, offsets):
    [choice] = (await ask(client, prompt=prompt, max_tokens=2, **ECHO))["choices"]
    assert choice["text"] == text + "He"
    assert choice["logprobs"]["text_offset"] == [*offsets, len(text), len(text) + 1]


async def test_offsets_of_answers_are_places_in_the_text_too():
    async with running_server(FakeEngine(say("é😀x"))) as server, httpx.AsyncClient(base_url=server.url) as client:
        [choice] = (await ask(client, prompt="a", logprobs=0))["choices"]
    assert choice["text"] == "é😀x"
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 1, 2]


async def test_the_end_of_a_short_answer_is_its_last_entry():
    """Who scores a prompt asks for one token and drops the last entry, whatever it is."""
    async with running_server(FakeEngine(say(""))) as server, httpx.AsyncClient(base_url=server.url) as client:
        [echoed] = (await ask(client, prompt="ab", max_tokens=1, **ECHO))["choices"]
        [plain] = (await ask(client, prompt="ab", max_tokens=1, logprobs=1))["choices"]
    assert (echoed["text"], echoed["finish_reason"]) == ("ab", "stop")
    assert echoed["logprobs"]["tokens"] == ["<256>", "a", "b", "<257>"]
    assert echoed["logprobs"]["text_offset"] == [0, 0, 1, 2]
    assert plain["logprobs"]["tokens"] == []


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("max_tokens", [0, 1, 5])
async def test_a_stream_says_what_the_whole_answer_says(client, n, max_tokens):
    body = {"prompt": ["ab", "é"], "n": n, "max_tokens": max_tokens, **ECHO}
    whole = await ask(client, **body)
    reply = await client.post(PLAIN, json=body | {"stream": True, "stream_options": {"include_usage": True}})
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    *chunks, last = map(json.loads, lines)
    assert last["usage"] == whole["usage"]
    choices = {}
    for [choice] in (chunk["choices"] for chunk in chunks):
        known = choices.setdefault(choice["index"], {"text": "", "logprobs": {}, "finish_reason": None})
        known["text"] += choice["text"]
        known["finish_reason"] = choice["finish_reason"]
        for key, values in choice["logprobs"].items():
            known["logprobs"].setdefault(key, []).extend(values)
    want = {c["index"]: {key: c[key] for key in ("text", "logprobs", "finish_reason")} for c in whole["choices"]}
    assert choices == want
    assert len(want) == 2 * n


async def test_the_choices_of_a_prompt_ask_the_engine_once(client, hello):
    reply = await ask(client, prompt=["ab", "c"], n=2, best_of=3, max_tokens=1, prompt_logprobs=2, **ECHO)
    asked = [params.prompt_logprobs for params in hello.service.engine.sampling]
    assert asked == [2, None, None] * 2
    assert [choice["logprobs"]["tokens"][:-1] for choice in reply["choices"]] == [["<256>", "a", "b"]] * 2 + [
        ["<256>", "c"]
    ] * 2
    assert [len(choice["logprobs"]["top_logprobs"][1]) for choice in reply["choices"]] == [1] * 4
    assert [len(choice["prompt_logprobs"][1]) for choice in reply["choices"]] == [2] * 4


async def test_prompt_logprobs_of_a_completion_belong_to_its_choices(client):
    [choice] = (await ask(client, prompt="ab", max_tokens=1, prompt_logprobs=2))["choices"]
    assert choice["prompt_logprobs"] == [
        None,
        {
            "97": {"logprob": -0.5, "rank": 1, "decoded_token": "a"},
            "98": {"logprob": -1.0, "rank": 2, "decoded_token": "b"},
        },
        {
            "98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"},
            "99": {"logprob": -1.0, "rank": 2, "decoded_token": "c"},
        },
    ]
    assert (choice["text"], choice["logprobs"]) == ("H", None)


async def test_prompt_logprobs_of_a_chat_belong_to_the_answer(client):
    messages = [{"role": "user", "content": "x"}]
    reply = await ask(client, CHAT, messages=messages, max_tokens=1, prompt_logprobs=0, n=2)
    prompt = "user: x\nassistant: "
    assert reply["prompt_logprobs"] == [
        None,
        *({str(ord(char)): {"logprob": -0.5, "rank": 1, "decoded_token": char}} for char in prompt[1:]),
    ]
    assert "prompt_logprobs" not in await ask(client, CHAT, messages=messages)
    nothing = await ask(client, CHAT, messages=messages, max_tokens=0, prompt_logprobs=0)
    assert (nothing["choices"][0]["message"]["content"], nothing["usage"]["completion_tokens"]) == ("", 0)


TOO_MANY = "log probabilities of prompt tokens; at most 100: send fewer or shorter prompts"
NOT_STREAMED = "prompt_logprobs: not served together with stream: leave one of them out"
NO_INTEGER = "prompt_logprobs: input should be a valid integer"

# sentence → (fields of both kinds of completion, message of the refusal)
REFUSED = {
    "more than the limit": ({"prompt_logprobs": 4}, "prompt_logprobs: 4: must be 0 to 3"),
    "-1, which is all of them in vLLM": ({"prompt_logprobs": -1}, "prompt_logprobs: -1: must be 0 to 3"),
    "2^63": ({"prompt_logprobs": 2**63}, f"prompt_logprobs: {2**63}: must be 0 to 3"),
    "true": ({"prompt_logprobs": True}, NO_INTEGER),
    "a string": ({"prompt_logprobs": "1"}, NO_INTEGER),
    "a list": ({"prompt_logprobs": [1]}, NO_INTEGER),
    "in a stream": ({"prompt_logprobs": 1, "stream": True}, NOT_STREAMED),
    "0 in a stream": ({"prompt_logprobs": 0, "stream": True}, NOT_STREAMED),
    "with a beam search": (
        {"prompt_logprobs": 1, "use_beam_search": True},
        "prompt_logprobs: not served together with use_beam_search: leave it out",
    ),
}
# sentence → (body of a plain completion, message of the refusal)
REFUSED_PLAIN = {
    "no token of a beam search": (
        {"prompt": "a", "echo": True, "max_tokens": 0, "use_beam_search": True},
        "max_tokens: 0: not served together with use_beam_search",
    ),
    "two prompts, both fields": (
        {"prompt": ["a" * 16] * 2, "echo": True, "logprobs": 0, "prompt_logprobs": 1, "max_tokens": 0},
        f"prompt_logprobs: the answer would hold 102 {TOO_MANY}",
    ),
    "the choices of an echo": (
        {"prompt": "a" * 15, "n": 4, "echo": True, "logprobs": 1, "max_tokens": 0},
        f"logprobs: the answer would hold 128 {TOO_MANY}",
    ),
    "an echo's logprobs below 0": ({"prompt": "a", "echo": True, "logprobs": -1}, "logprobs: -1: must be 0 to 3"),
    "an echo's logprobs above the limit": ({"prompt": "a", "echo": True, "logprobs": 4}, "logprobs: 4: must be 0 to 3"),
}


async def test_what_is_refused(small_limits):
    rows = {(PLAIN, name): ({"prompt": "a"} | fields, message) for name, (fields, message) in REFUSED.items()}
    messages = [{"role": "user", "content": "a"}]
    rows |= {(CHAT, name): ({"messages": messages} | fields, message) for name, (fields, message) in REFUSED.items()}
    rows |= {(PLAIN, name): row for name, row in REFUSED_PLAIN.items()}
    found = {}
    engine = FakeEngine(say("x"))
    async with running_server(engine, limits=small_limits) as server, httpx.AsyncClient(base_url=server.url) as client:
        for (path, name), (body, _) in rows.items():
            reply = await client.post(path, json=body)
            found[path, name] = (reply.status_code, reply.json()["error"]["message"], reply.json()["error"]["param"])
    assert found == {key: (400, message, message.split(":")[0]) for key, (_, message) in rows.items()}
    assert engine.prompts == []


@asynccontextmanager
async def real_client(**settings):
    async with (
        running_tiny_engine(enable_prefix_caching=True, **settings) as engine,
        running_server(engine) as server,
        openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def row_values(prompt_ids):
    """Log probabilities `[N - 1, V]` after each token of the prompt but the last, from a plain forward pass."""
    return naive_logits(tiny_decoder(), prompt_ids).log_softmax(-1)[:-1]


@pytest.mark.parametrize("budget", [16, 512])
async def test_the_openai_client_gets_exact_values_from_a_warm_engine(budget):
    text = "Whoever measures a model by its prompts wants every digit, twice over; é counts as two tokens."
    ids = ByteTokenizer().encode(text)
    async with real_client(max_num_batched_tokens=budget) as client:
        for _ in range(2):
            reply = await client.completions.create(
                model="tiny", prompt=[text, "b"], echo=True, logprobs=2, max_tokens=0
            )
            [first, second] = reply.choices
            assert (first.text, first.finish_reason, second.text) == (text, "length", "b")
            assert reply.usage.completion_tokens == 0
            assert reply.usage.prompt_tokens == len(ids) + 2
            assert_values(first.logprobs, ids)
            assert_values(second.logprobs, ByteTokenizer().encode("b"))


def assert_values(found, ids):
    logprobs = row_values(ids)
    tokenizer = ByteTokenizer()
    assert found.tokens == [tokenizer.token_text(token) for token in ids]
    assert found.token_logprobs[0] is None
    own = [float(row[token]) for row, token in zip(logprobs, ids[1:], strict=True)]
    assert found.token_logprobs[1:] == pytest.approx(own, abs=2e-5)
    assert found.top_logprobs[0] is None
    for row, top in zip(logprobs, found.top_logprobs[1:], strict=True):
        values, best = row.topk(2)
        want = {}
        for token, value in zip(best.tolist(), values.tolist(), strict=True):
            want.setdefault(tokenizer.token_text(token), value)
        assert top == pytest.approx(want, abs=2e-5)
    assert found.text_offset == sorted(found.text_offset)


async def test_a_scorer_s_request_gives_the_continuation_s_likelihood():
    """Tokenised prompts, one token more than wanted, and the last entry dropped, as evaluation harnesses do it."""
    context, continuation = list(b"The sky is"), list(b" blue")
    ids = context + continuation
    async with real_client() as client:
        reply = await client.completions.create(
            model="tiny", prompt=[ids, ids[:12]], echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234
        )
    choice = reply.choices[0]
    logprobs = row_values(ids)
    want = sum(float(logprobs[i - 1][ids[i]]) for i in range(len(context), len(ids)))
    assert sum(choice.logprobs.token_logprobs[len(context) : -1]) == pytest.approx(want, abs=1e-4)
    greedy = all(
        own == max(top.values())
        for own, top in zip(
            choice.logprobs.token_logprobs[len(context) : -1],
            choice.logprobs.top_logprobs[len(context) : -1],
            strict=True,
        )
    )
    assert greedy == all(int(logprobs[i - 1].argmax()) == ids[i] for i in range(len(context), len(ids)))
    assert len(reply.choices[1].logprobs.tokens) == 13


async def test_vllm_s_field_has_ranks_of_the_whole_vocabulary():
    ids = list(b"ranks")
    async with real_client() as client:
        reply = await client.completions.create(
            model="tiny", prompt=ids, max_tokens=1, extra_body={"prompt_logprobs": 1}
        )
    found = reply.choices[0].model_extra["prompt_logprobs"]
    assert found[0] is None
    for row, token, entry in zip(row_values(ids), ids[1:], found[1:], strict=True):
        order = row.argsort(descending=True).tolist()
        assert list(entry) == list(dict.fromkeys((str(token), str(order[0]))))
        assert entry[str(token)]["rank"] == order.index(token) + 1
        assert entry[str(token)]["logprob"] == pytest.approx(float(row[token]), abs=2e-5)
        assert entry[str(order[0])]["rank"] == 1
