"""The endpoints that run the tokenizer or the model: parse, check, tokenise, then hand a `Job` to `responding`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import Response

from pagefleet_engine.request import SamplingParams
from pagefleet_engine.server.beam_fields import check_beams, check_num_choices
from pagefleet_engine.server.errors import invalid
from pagefleet_engine.server.inputs import (
    Message,
    Prompt,
    build_sampling,
    check_messages,
    check_prompt_logprobs,
    check_prompts,
    check_stream_options,
    check_token_ids,
)
from pagefleet_engine.server.job import Job, PromptPlan, fit_length, spread, wants
from pagefleet_engine.server.responding import JsonResponse, respond
from pagefleet_engine.server.schemas import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    GenerationBody,
    TokenizeBody,
    parse_body,
)
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.shapes import ChatShape, CompletionShape
from pagefleet_engine.server.structured import check_wanted
from pagefleet_engine.server.structured_work import Structure
from pagefleet_engine.server.tools import ToolUse, check_tools
from pagefleet_engine.server.tools_telling import tell

TokenisedPrompt = tuple[tuple[int, ...], str]
"""Ids, and a text."""


async def chat(request: Request, service: Service) -> Response:
    """`POST /v1/chat/completions`."""
    body = parse_body(ChatBody, await service.bodies.read(request))
    model = service.model_id(body.model)
    check_stream_options(body)
    messages = check_messages(body.messages, service.limits)
    engine = service.engine
    sampling = build_sampling(body, service.limits, engine.model_info.vocab_size)
    beam = check_beams(body, service.limits)
    use = check_tools(body.tools, body.tool_choice, body.parallel_tool_calls, service.limits)
    structure = await _structure(service, body, use)
    ids = await _tokenize_messages(
        service, messages, use, add_generation_prompt=body.add_generation_prompt is not False
    )
    check_prompt_logprobs(body, len(ids), service.limits)
    plans = _plans(service, model, [(ids, "")], sampling, param="messages")
    job = Job(
        id=f"chatcmpl-{uuid4().hex}",
        created=int(service.unix_time()),
        model=model,
        choices=spread(plans),
        num_prompt_tokens=len(ids),
        structure=structure,
        beam=beam,
        **wants(body),
    )
    return await respond(request, service, job, ChatShape(engine.tokenizer))


async def completions(request: Request, service: Service) -> Response:
    """`POST /v1/completions`."""
    body = parse_body(CompletionBody, await service.bodies.read(request))
    model = service.model_id(body.model)
    check_stream_options(body)
    prompts = check_prompts(body.prompt, service.limits)
    engine = service.engine
    sampling = build_sampling(body, service.limits, engine.model_info.vocab_size)
    beam = check_beams(body, service.limits)
    check_num_choices(sampling, beam, len(prompts), service.limits)
    structure = await _structure(service, body)
    tokenised = await _tokenize_prompts(service, prompts, add_special_tokens=body.add_special_tokens is not False)
    check_prompt_logprobs(body, sum(len(ids) for ids, _ in tokenised), service.limits)
    prompts_and_echoes = [(ids, text if body.echo else "") for ids, text in tokenised]
    plans = _plans(service, model, prompts_and_echoes, sampling, param="prompt")
    job = Job(
        id=f"cmpl-{uuid4().hex}",
        created=int(service.unix_time()),
        model=model,
        choices=spread(plans),
        num_prompt_tokens=sum(len(ids) for ids, _ in tokenised),
        structure=structure,
        beam=beam,
        **wants(body),
    )
    shape = CompletionShape(engine.tokenizer, skip_special_tokens=job.skip_special_tokens)
    return await respond(request, service, job, shape)


async def tokenize(request: Request, service: Service) -> Response:
    """`POST /tokenize`."""
    body = parse_body(TokenizeBody, await service.bodies.read(request))
    service.model_id(body.model)
    ids = await _tokenize_body(service, body)
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": service.max_model_len(), "tokens": ids}
    token_text = service.engine.tokenizer.token_text
    return JsonResponse(
        answer | {"token_strs": [token_text(token) for token in ids] if body.return_token_strs else None}
    )


async def _tokenize_body(service: Service, body: TokenizeBody) -> tuple[int, ...]:
    """Ids of the prompt that a completion, or a chat with these tools, would have."""
    if (body.prompt is None) == (body.messages is None):
        raise invalid("prompt: give either prompt or messages", param="prompt")
    if body.messages is not None:
        return await _tokenize_messages(
            service,
            check_messages(body.messages, service.limits),
            check_tools(body.tools, body.tool_choice, None, service.limits),
            add_generation_prompt=body.add_generation_prompt is not False,
            add_special_tokens=body.add_special_tokens is True,
        )
    if body.tools:
        raise invalid("tools: only with messages: a prompt is tokenised as it is", param="tools")
    if not isinstance(body.prompt, str):
        raise invalid("prompt: must be a string", param="prompt")
    special = body.add_special_tokens is not False
    [(ids, _)] = await _tokenize_prompts(service, [body.prompt], add_special_tokens=special)
    return ids


async def detokenize(request: Request, service: Service) -> Response:
    """`POST /detokenize`."""
    body = parse_body(DetokenizeBody, await service.bodies.read(request))
    service.model_id(body.model)
    engine = service.engine
    check_token_ids(body.tokens, engine.model_info.vocab_size, "tokens")
    text = await service.text.run(
        lambda: engine.tokenizer.decode(body.tokens, skip_special_tokens=False), param="tokens"
    )
    return JsonResponse({"prompt": text})


def _plans(
    service: Service, model: str, prompts: Sequence[TokenisedPrompt], sampling: SamplingParams, *, param: str
) -> list[PromptPlan]:
    """Gives each answer its length, then asks the route. Raises `ApiError` when a prompt and its answer do not fit."""
    longest = service.max_model_len()
    fitted = [fit_length(sampling, len(ids), longest, param=param) for ids, _ in prompts]
    return [
        PromptPlan(
            prompt_ids=ids,
            sampling=fit,
            pick=service.routes.pick(model, len(ids) + (fit.max_tokens or 0)),
            echo=echo,
        )
        for (ids, echo), fit in zip(prompts, fitted, strict=True)
    ]


async def _structure(service: Service, body: GenerationBody, use: ToolUse | None = None) -> Structure:
    """What the answers must look like. Raises `ApiError` that names the field."""
    wanted = check_wanted(body, service.limits)
    if body.use_beam_search and (wanted is not None or use is not None):
        param = "tools" if wanted is None else wanted.param
        raise invalid(f"{param}: not together with use_beam_search", param=param)
    return await service.structured.prepare(wanted, use)


async def _tokenize_messages(
    service: Service,
    messages: list[Message],
    use: ToolUse | None,
    *,
    add_generation_prompt: bool,
    add_special_tokens: bool = False,
) -> tuple[int, ...]:
    """Ids of a dialogue. Its template has written the special tokens; `add_special_tokens` adds those of a prompt."""
    tokenizer, longest = service.engine.tokenizer, service.max_model_len()
    knows_tools = tokenizer.template_takes_tools
    tools = use.definitions if use is not None and knows_tools else None

    def work() -> tuple[int, ...]:
        told = messages if knows_tools else tell(messages, use, service.tool_form)
        text = tokenizer.apply_chat_template(told, add_generation_prompt=add_generation_prompt, tools=tools)
        service.text.check_length(text, longest, param="messages")
        return tuple(tokenizer.encode(text, add_special_tokens=add_special_tokens))

    return await service.text.run(work, param="messages")


async def _tokenize_prompts(
    service: Service, prompts: list[Prompt], *, add_special_tokens: bool
) -> list[TokenisedPrompt]:
    """Ids and text of each prompt."""
    engine, longest = service.engine, service.max_model_len()

    def work() -> list[TokenisedPrompt]:
        return [as_ids_and_text(prompt) for prompt in prompts]

    def as_ids_and_text(prompt: Prompt) -> TokenisedPrompt:
        if isinstance(prompt, list):
            check_token_ids(prompt, engine.model_info.vocab_size, "prompt")
            fits = prompt[:longest]  # what is longer is refused by its length; no need to decode it
            return tuple(prompt), engine.tokenizer.decode(fits, skip_special_tokens=False)
        service.text.check_length(prompt, longest, param="prompt")
        return tuple(engine.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)), prompt

    return await service.text.run(work, param="prompt")
