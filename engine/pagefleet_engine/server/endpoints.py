"""The endpoints that run the model: parse, check, tokenise, then hand a `Job` to `responding`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from pagefleet_engine.request import SamplingParams
from pagefleet_engine.server.beam_fields import check_beams, check_num_choices
from pagefleet_engine.server.dialogue import Dialogue, check_dialogue
from pagefleet_engine.server.errors import invalid
from pagefleet_engine.server.inputs import (
    Prompt,
    build_sampling,
    check_prompt_logprobs,
    check_prompts,
    check_stream_options,
)
from pagefleet_engine.server.job import BeamOptions, Job, PromptPlan, fit_length, spread, wants
from pagefleet_engine.server.names import Names, names
from pagefleet_engine.server.responding import Call, respond
from pagefleet_engine.server.schemas import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    parse_body,
)
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.shapes import ChatShape, CompletionShape
from pagefleet_engine.server.structured import Wanted, check_wanted
from pagefleet_engine.server.structured_work import Structure
from pagefleet_engine.server.tokenising import TokenisedPrompt, tokenize_dialogue, tokenize_prompts
from pagefleet_engine.server.tools import ToolUse, check_tools


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """What both kinds of completion say about their answers, checked."""

    named: Names
    model: str
    sampling: SamplingParams
    beam: BeamOptions | None
    wanted: Wanted | None


async def chat(call: Call, service: Service) -> Response:
    """`POST /v1/chat/completions`."""

    def check() -> tuple[ChatBody, Dialogue, _Asked]:
        body = parse_body(ChatBody, call.value)
        use = check_tools(body.tools, body.tool_choice, body.parallel_tool_calls, service.limits)
        dialogue = check_dialogue(body, use, service.limits)
        return body, dialogue, _check(call, service, body, "chatcmpl", use)

    body, dialogue, asked = await service.bodies.check(call.request, check)
    structure = await service.structured.prepare(asked.wanted, dialogue.use)
    ids = await tokenize_dialogue(service, dialogue)
    check_prompt_logprobs(body, len(ids), service.limits)
    plans = _plans(service, asked, [(ids, "")], param="messages")
    job = _job(call, service, body, asked, plans, structure)
    return await respond(call, service, job, ChatShape(service.engine.tokenizer))


async def completions(call: Call, service: Service) -> Response:
    """`POST /v1/completions`."""

    def check() -> tuple[CompletionBody, list[Prompt], _Asked]:
        body = parse_body(CompletionBody, call.value)
        prompts = check_prompts(body.prompt, service.limits)
        asked = _check(call, service, body, "cmpl")
        check_num_choices(asked.sampling, asked.beam, len(prompts), service.limits)
        return body, prompts, asked

    body, prompts, asked = await service.bodies.check(call.request, check)
    structure = await service.structured.prepare(asked.wanted)
    tokenised = await tokenize_prompts(service, prompts, add_special_tokens=body.add_special_tokens is not False)
    check_prompt_logprobs(body, sum(len(ids) for ids, _ in tokenised), service.limits)
    prompts_and_echoes = [(ids, text if body.echo else "") for ids, text in tokenised]
    plans = _plans(service, asked, prompts_and_echoes, param="prompt")
    job = _job(call, service, body, asked, plans, structure)
    shape = CompletionShape(service.engine.tokenizer, skip_special_tokens=job.skip_special_tokens)
    return await respond(call, service, job, shape)


def _check(call: Call, service: Service, body: GenerationBody, kind: str, use: ToolUse | None = None) -> _Asked:
    """Raises `ApiError` that names the field."""
    named = names(call.request, body, kind)
    model = service.model_id(body.model)
    check_stream_options(body)
    sampling = build_sampling(body, service.limits, service.engine.model_info.vocab_size)
    beam = check_beams(body, service.limits)
    wanted = check_wanted(body, service.limits)
    if body.use_beam_search and (wanted is not None or use is not None):
        param = "tools" if wanted is None else wanted.param
        raise invalid(f"{param}: not together with use_beam_search", param=param)
    return _Asked(named=named, model=model, sampling=sampling, beam=beam, wanted=wanted)


def _plans(service: Service, asked: _Asked, prompts: Sequence[TokenisedPrompt], *, param: str) -> list[PromptPlan]:
    """Gives each answer its length, then asks the route. Raises `ApiError` when a prompt and its answer do not fit."""
    longest = service.max_model_len()
    fitted = [fit_length(asked.sampling, len(ids), longest, param=param) for ids, _ in prompts]
    return [
        PromptPlan(
            prompt_ids=ids,
            sampling=fit,
            pick=service.routes.pick(asked.model, len(ids) + (fit.max_tokens or 0)),
            echo=echo,
        )
        for (ids, echo), fit in zip(prompts, fitted, strict=True)
    ]


def _job(
    call: Call,
    service: Service,
    body: GenerationBody,
    asked: _Asked,
    plans: Sequence[PromptPlan],
    structure: Structure,
) -> Job:
    return Job(
        **asked.named,
        created=int(service.unix_time()),
        arrived_at_s=call.arrived_at_s,
        model=asked.model,
        choices=spread(plans),
        num_prompt_tokens=sum(len(plan.prompt_ids) for plan in plans),
        structure=structure,
        beam=asked.beam,
        **wants(body),
    )
