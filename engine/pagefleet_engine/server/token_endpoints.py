"""`/tokenize` and `/detokenize`: what a completion or a chat would make of a text, and the text of tokens.

Both are bounded by the model's context, and their answers are written in the threads that tokenise.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from pagefleet_engine.server.dialogue import check_dialogue
from pagefleet_engine.server.errors import ApiError, invalid
from pagefleet_engine.server.inputs import check_token_ids
from pagefleet_engine.server.responding import Call
from pagefleet_engine.server.schemas import DetokenizeBody, TokenizeBody, parse_body
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.tokenising import tokenize_dialogue, tokenize_prompts
from pagefleet_engine.server.tools import check_tools


async def tokenize(call: Call, service: Service) -> Response:
    """`POST /tokenize`."""
    body = parse_body(TokenizeBody, call.value)
    service.model_id(body.model)
    param = "prompt" if body.messages is None else "messages"
    ids, longest = await _ids(service, body), service.max_model_len()
    if len(ids) > longest:
        raise _too_long(len(ids), longest, param=param)
    token_text = service.engine.tokenizer.token_text if body.return_token_strs else None

    def write() -> bytes:
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": longest, "tokens": ids}
        return to_json(answer | {"token_strs": None if token_text is None else [token_text(token) for token in ids]})

    return _as_response(await service.text.run(write, param=param))


async def _ids(service: Service, body: TokenizeBody) -> tuple[int, ...]:
    """Ids of the prompt that a completion, or a chat with these tools, would have."""
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt: give either prompt or messages", param="prompt")
    if body.messages is not None:
        use = check_tools(body.tools, body.tool_choice, None, service.limits)
        return await tokenize_dialogue(service, check_dialogue(body, use, service.limits))
    if body.tools:
        raise invalid("tools: only with messages: a prompt is tokenised as it is", param="tools")
    if not isinstance(body.prompt, str):
        raise invalid("prompt: must be a string", param="prompt")
    special = body.add_special_tokens is not False
    [(ids, _)] = await tokenize_prompts(service, [body.prompt], add_special_tokens=special)
    return ids


async def detokenize(call: Call, service: Service) -> Response:
    """`POST /detokenize`."""
    body = parse_body(DetokenizeBody, call.value)
    service.model_id(body.model)
    engine, tokens, longest = service.engine, body.tokens, service.max_model_len()
    if len(tokens) > longest:
        raise _too_long(len(tokens), longest, param="tokens")
    check_token_ids(tokens, engine.model_info.vocab_size, "tokens")

    def write() -> bytes:
        return to_json({"prompt": engine.tokenizer.decode(tokens, skip_special_tokens=False)})

    return _as_response(await service.text.run(write, param="tokens"))


def _too_long(num_tokens: int, longest: int, *, param: str) -> ApiError:
    message = f"{param}: {num_tokens} tokens: the maximum context length is {longest} tokens; send a part at a time"
    return invalid(message, param=param, code="context_length_exceeded")


def _as_response(written: bytes) -> Response:
    return Response(written, media_type="application/json")
