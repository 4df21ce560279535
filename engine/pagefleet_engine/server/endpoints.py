"""The endpoints that run the model: parse, check, tokenise, then hand a `Job` to `responding`."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response

from pagefleet_engine.request import SamplingParams
from pagefleet_engine.server.beam_fields import check_beams, check_num_choices
from pagefleet_engine.server.dialogue import check_dialogue
from pagefleet_engine.server.errors import invalid
from pagefleet_engine.server.inputs import (
    build_sampling,
    check_prompt_logprobs,
    check_prompts,
    check_stream_options,
)
from pagefleet_engine.server.job import Job, PromptPlan, fit_length, spread, wants
from pagefleet_engine.server.names import names
from pagefleet_engine.server.responding import Call, respond
from pagefleet_engine.server.schemas import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    parse_body,
)
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.shapes import ChatShape, CompletionShape
from pagefleet_engine.server.structured import check_wanted
from pagefleet_engine.server.structured_work import Structure
from pagefleet_engine.server.tokenising import TokenisedPrompt, tokenize_dialogue, tokenize_prompts
from pagefleet_engine.server.tools import ToolUse, check_tools


async def chat(call: Call, service: Service) -> Response:
    """`POST /v1/chat/completions`."""
    body = parse_body(ChatBody, call.value)
    named = names(call.request, body, "chatcmpl")
    model = service.model_id(body.model)
    check_stream_options(body)
    use = check_tools(body.tools, body.tool_choice, body.parallel_tool_calls, service.limits)
    dialogue = check_dialogue(body, use, service.limits)
    engine = service.engine
    sampling = build_sampling(body, service.limits, engine.model_info.vocab_size)
    beam = check_beams(body, service.limits)
    structure = await _structure(service, body, use)
    ids = await tokenize_dialogue(service, dialogue)
    check_prompt_logprobs(body, len(ids), service.limits)
    plans = _plans(service, model, [(ids, "")], sampling, param="messages")
    job = Job(
        **named,
        created=int(service.unix_time()),
        arrived_at_s=call.arrived_at_s,
        model=model,
        choices=spread(plans),
        num_prompt_tokens=len(ids),
        structure=structure,
        beam=beam,
        **wants(body),
    )
    return await respond(call, service, job, ChatShape(engine.tokenizer))


async def completions(call: Call, service: Service) -> Response:
    """`POST /v1/completions`."""
    body = parse_body(CompletionBody, call.value)
    named = names(call.request, body, "cmpl")
    model = service.model_id(body.model)
    check_stream_options(body)
    prompts = check_prompts(body.prompt, service.limits)
    engine = service.engine
    sampling = build_sampling(body, service.limits, engine.model_info.vocab_size)
    beam = check_beams(body, service.limits)
    check_num_choices(sampling, beam, len(prompts), service.limits)
    structure = await _structure(service, body)
    tokenised = await tokenize_prompts(service, prompts, add_special_tokens=body.add_special_tokens is not False)
    check_prompt_logprobs(body, sum(len(ids) for ids, _ in tokenised), service.limits)
    prompts_and_echoes = [(ids, text if body.echo else "") for ids, text in tokenised]
    plans = _plans(service, model, prompts_and_echoes, sampling, param="prompt")
    job = Job(
        **named,
        created=int(service.unix_time()),
        arrived_at_s=call.arrived_at_s,
        model=model,
        choices=spread(plans),
        num_prompt_tokens=sum(len(ids) for ids, _ in tokenised),
        structure=structure,
        beam=beam,
        **wants(body),
    )
    shape = CompletionShape(engine.tokenizer, skip_special_tokens=job.skip_special_tokens)
    return await respond(call, service, job, shape)


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
