"""Checks what `schemas` leaves open: prompts, messages, stop strings and sampling parameters.

Pure. Every function raises `ApiError` with the field and the remedy; counts are checked before any work per item.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

from pagefleet_engine.request import SamplingError, SamplingParams
from pagefleet_engine.server.errors import ApiError, invalid, shorten, unsupported
from pagefleet_engine.server.json_texts import JsonTexts
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.schemas import ChatBody, CompletionBody, GenerationBody
from pagefleet_engine.server.tools import check_tool_calls

Message = dict[str, Any]
Prompt = str | list[int]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
MAX_PRIORITY: Final = 100
COMPLETION_MAX_TOKENS: Final = 16
"""What `/v1/completions` generates when the client does not say, as OpenAI does."""


def check_prompts(value: Any, limits: Limits) -> list[Prompt]:
    """`prompt` as a list of texts and token id lists, none of them empty."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise invalid("prompt: must be a string, a list of strings, or lists of token ids", param="prompt")
    if value and _are_ints(value):
        value = [value]
    if len(value) > limits.prompts:
        raise invalid(f"prompt: has {len(value)} entries; at most {limits.prompts} are served", param="prompt")
    if not value or any(not item for item in value):
        raise invalid("prompt: must not be empty", param="prompt")
    for item in value:
        if not isinstance(item, str) and not (isinstance(item, list) and _are_ints(item)):
            raise invalid("prompt: entries must be strings or lists of token ids", param="prompt")
    return cast(list[Prompt], value)


def check_token_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Every id must be one that the model has an embedding for."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        wrong = next(token for token in ids if not 0 <= token < vocab_size)
        raise invalid(f"{param}: {wrong} is no token id: the model's are 0 to {vocab_size - 1}", param=param)


def check_messages(value: Any, limits: Limits) -> list[Message]:
    """`messages` with plain text as content, as the chat template takes them."""
    if not isinstance(value, list) or not value:
        raise invalid("messages: must be a list of at least one message", param="messages")
    if len(value) > limits.messages:
        raise invalid(f"messages: has {len(value)} entries; at most {limits.messages} are served", param="messages")
    texts = JsonTexts(limits)
    return [_check_message(item, f"messages.{position}", limits, texts) for position, item in enumerate(value)]


def _check_message(item: Any, where: str, limits: Limits, texts: JsonTexts) -> Message:
    if not isinstance(item, dict):
        raise invalid(f"{where}: must be an object with role and content", param=where)
    role = item.get("role")
    if role == "function" or item.get("function_call"):
        raise unsupported(f"{where}.function_call")
    if role not in ROLES:
        raise invalid(f"{where}.role: must be one of {', '.join(ROLES)}", param=f"{where}.role")
    name = item.get("name")
    if name is not None and not isinstance(name, str):
        raise invalid(f"{where}.name: must be a string", param=f"{where}.name")
    message: Message = {"role": "system" if role == "developer" else role, "content": _check_content(item, role, where)}
    if role == "tool" and not isinstance(item.get("tool_call_id"), str):
        raise invalid(f"{where}.tool_call_id: must be a string", param=f"{where}.tool_call_id")
    if role == "tool":
        message["tool_call_id"] = item["tool_call_id"]
    if role == "assistant" and item.get("tool_calls"):
        message["tool_calls"] = check_tool_calls(item["tool_calls"], where, limits, texts)
    return message if name is None else message | {"name": name}


def _check_content(item: Message, role: str, where: str) -> str:
    content, param = item.get("content"), f"{where}.content"
    if isinstance(content, str):
        return content
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list):
        raise invalid(f"{param}: must be a string or a list of text parts", param=param)
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise invalid(f'{param}: only parts like {{"type": "text", "text": "..."}} are served', param=param)
        texts.append(part["text"])
    return "\n".join(texts)


def check_stop(value: Any, limits: Limits) -> tuple[str, ...]:
    """`stop` as a tuple of strings that are not empty."""
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or any(not isinstance(stop, str) for stop in stops):
        raise invalid("stop: must be a string or a list of strings", param="stop")
    if len(stops) > limits.stop_strings:
        raise invalid(f"stop: has {len(stops)} strings; at most {limits.stop_strings} are served", param="stop")
    if any(not 0 < len(stop) <= limits.stop_chars for stop in stops):
        raise invalid(f"stop: each string must have 1 to {limits.stop_chars} characters", param="stop")
    return tuple(stops)


def check_stream_options(body: GenerationBody) -> None:
    """`stream_options` says something about a stream, so there has to be one."""
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options: only with stream set to true", param="stream_options")


def check_scheduling(body: GenerationBody, limits: Limits) -> None:
    """`priority` and `cache_salt`."""
    if body.priority is not None and abs(body.priority) > MAX_PRIORITY:
        message = f"priority: {body.priority}: must be -{MAX_PRIORITY} to {MAX_PRIORITY}; lower is served earlier"
        raise invalid(message, param="priority")
    if body.cache_salt is not None and not 0 < len(body.cache_salt) <= limits.cache_salt_chars:
        raise invalid(f"cache_salt: must have 1 to {limits.cache_salt_chars} characters", param="cache_salt")


def _check_counts(body: GenerationBody, limits: Limits) -> None:
    for name in ("n", "best_of"):
        count = getattr(body, name)
        if count is not None and not 1 <= count <= limits.n:
            raise invalid(f"{name}: {count}: must be 1 to {limits.n}", param=name)
    if body.stream and (body.best_of or 1) > (body.n or 1):
        raise invalid("best_of: the best are known at the end only: not with stream", param="best_of")


def build_sampling(body: GenerationBody, limits: Limits, vocab_size: int) -> SamplingParams:
    """The sampling parameters of choice 0; `n` is in them for the caller, who makes one request per choice."""
    check_scheduling(body, limits)
    _check_counts(body, limits)
    stop_token_ids = body.stop_token_ids or []
    if len(stop_token_ids) > limits.stop_token_ids:
        message = f"stop_token_ids: has {len(stop_token_ids)} ids; at most {limits.stop_token_ids} are served"
        raise invalid(message, param="stop_token_ids")
    given = {name: value for name in _PLAIN_FIELDS if (value := getattr(body, name)) is not None}
    given["top_k"] = given.get("top_k") if given.get("top_k") not in (0, -1) else None  # both mean "all tokens"
    try:
        params = SamplingParams(
            **given,
            max_tokens=_max_tokens(body),
            logprobs=_logprobs(body, limits),
            prompt_logprobs=_prompt_logprobs(body, limits),
            logit_bias=_logit_bias(body.logit_bias, limits),
            stop=check_stop(body.stop, limits),
            stop_token_ids=tuple(stop_token_ids),
        )
        params.check_vocabulary(vocab_size)
    except SamplingError as error:
        raise _as_asked(error, body) from None
    return params


def _as_asked(error: SamplingError, body: GenerationBody) -> ApiError:
    """Chat has two names for `max_tokens`."""
    message, param = str(error), error.param
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        message = message.replace("max_tokens", "max_completion_tokens")
        param = "max_completion_tokens" if param == "max_tokens" else param
    return invalid(message, param=param)


_PLAIN_FIELDS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "min_tokens",
    "ignore_eos",
    "n",
    "best_of",
)


def _max_tokens(body: GenerationBody) -> int | None:
    wanted, param = body.max_tokens, "max_tokens"
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        wanted, param = body.max_completion_tokens, "max_completion_tokens"
    elif isinstance(body, CompletionBody) and wanted is None:
        wanted = COMPLETION_MAX_TOKENS
    if wanted == 0:
        _check_no_token(body, param)
    return wanted


def _check_no_token(body: GenerationBody, param: str) -> None:
    """Who wants no token has to want something of the prompt."""
    if body.use_beam_search:
        raise invalid(f"{param}: 0: not served together with use_beam_search", param=param)
    if isinstance(body, CompletionBody):
        if not body.echo and body.prompt_logprobs is None:
            raise invalid(f"{param}: 0 only with echo or prompt_logprobs", param=param)
    elif body.prompt_logprobs is None:
        raise invalid(f"{param}: 0 only with prompt_logprobs", param=param)


def _logprobs(body: GenerationBody, limits: Limits) -> int | None:
    if isinstance(body, ChatBody):
        if body.top_logprobs and not body.logprobs:
            raise invalid("top_logprobs: only with logprobs set to true", param="top_logprobs")
        wanted, param = (body.top_logprobs or 0) if body.logprobs else None, "top_logprobs"
    else:
        assert isinstance(body, CompletionBody)
        wanted, param = body.logprobs, "logprobs"
    _check_logprobs(wanted, limits, param)
    return wanted


def _prompt_logprobs(body: GenerationBody, limits: Limits) -> int | None:
    """What the engine has to find out about the prompt: for the field of that name, and for an echo's logprobs."""
    _check_logprobs(body.prompt_logprobs, limits, "prompt_logprobs")
    if body.prompt_logprobs is not None and body.stream:
        raise invalid(
            "prompt_logprobs: not served together with stream: leave one of them out", param="prompt_logprobs"
        )
    return max(_wanted_of_prompts(body), default=None)


def _wanted_of_prompts(body: GenerationBody) -> list[int]:
    """The most likely tokens for each prompt token, for each place of the answer that shows them."""
    return [num_top for num_top in (body.prompt_logprobs, body.echoed_logprobs) if num_top is not None]


def check_prompt_logprobs(body: GenerationBody, num_prompt_tokens: int, limits: Limits) -> None:
    """An answer's log probabilities of prompts are bounded; `num_prompt_tokens` are those of all prompts together."""
    shown = num_prompt_tokens * (body.n or 1) * sum(num_top + 1 for num_top in _wanted_of_prompts(body))
    if shown > limits.prompt_logprobs_total:
        param = "logprobs" if body.prompt_logprobs is None else "prompt_logprobs"
        message = f"{param}: the answer would hold {shown} log probabilities of prompt tokens"
        raise invalid(f"{message}; at most {limits.prompt_logprobs_total}: send fewer or shorter prompts", param=param)


def _check_logprobs(wanted: int | None, limits: Limits, param: str) -> None:
    if wanted is not None and not 0 <= wanted <= limits.logprobs:
        raise invalid(f"{param}: {wanted}: must be 0 to {limits.logprobs}", param=param)


def _logit_bias(bias: dict[str, float] | None, limits: Limits) -> dict[int, float]:
    if not bias:
        return {}
    if len(bias) > limits.logit_bias:
        raise invalid(f"logit_bias: has {len(bias)} entries; at most {limits.logit_bias}", param="logit_bias")
    wrong = next((key for key in bias if not (key.isascii() and key.isdigit() and len(key) < 12)), None)
    if wrong is not None:
        raise invalid(f"logit_bias: {shorten(wrong)} is no token id", param="logit_bias")
    return {int(key): value for key, value in bias.items()}


def _are_ints(values: list[Any]) -> bool:
    """Integers and no booleans; half a million of them take milliseconds."""
    return set(map(type, values)) <= {int}
