"""What a client may send, field by field, as strict pydantic models; the OpenAPI document comes from them.

Fields that nobody knows are ignored, as clients expect. Fields of this API that the engine does not serve yet are
listed in `NOT_SERVED` and refused unless they hold a value that asks for nothing. Fields whose type is a union are
`Any` here and checked in `inputs`, where the message can be a sentence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, WithJsonSchema
from pydantic_core import PydanticCustomError

from pagefleet_engine.server.errors import ApiError, invalid, unsupported

_TEXT: Final = {"type": "string"}
_MESSAGE: Final = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["system", "developer", "user", "assistant", "tool"]}, "content": _TEXT},
}
_INTEGERS: Final = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}

_NOTHING: Final = {"type": "null"}
_MESSAGES: Final = {"type": "array", "items": _MESSAGE, "minItems": 1}

Messages = Annotated[Any, WithJsonSchema(_MESSAGES)]
Prompt = Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}, _INTEGERS]})]
Stop = Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, _NOTHING]})]

_OBJECT: Final = {"type": "object"}
_FUNCTION: Final = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "required": ["name"], "properties": {"name": _TEXT, "parameters": _OBJECT}},
    },
}
_FORMAT: Final = {
    "type": "object",
    "required": ["type"],
    "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}, "json_schema": _OBJECT},
}

Anything = Annotated[Any, WithJsonSchema({})]
ResponseFormat = Annotated[Any, WithJsonSchema({"anyOf": [_FORMAT, _NOTHING]})]
StructuredOutputs = Annotated[Any, WithJsonSchema({"anyOf": [_OBJECT, _NOTHING]})]
TemplateVariables = Annotated[Any, WithJsonSchema({"anyOf": [_OBJECT, _NOTHING]})]
Tools = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "array", "items": _FUNCTION}, _NOTHING]})]
ToolChoice = Annotated[Any, WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, _FUNCTION, _NOTHING]})]


def _one_wrong_item(value: Any) -> Any:
    """Refuse the first one: an error for each of half a million would take seconds."""
    items = value if isinstance(value, list) else [*value.values()] if isinstance(value, dict) else []
    wrong = {kind for kind in set(map(type, items)) if kind not in (int, float)}
    if wrong:
        position = next(i for i, item in enumerate(items) if type(item) in wrong)
        raise PydanticCustomError("wrong_item", "entry {position} should be a number", {"position": position})
    if isinstance(value, list) and float in map(type, items):
        position = next(i for i, item in enumerate(items) if type(item) is float)
        raise PydanticCustomError("wrong_item", "entry {position} should be an integer", {"position": position})
    return value


TokenIds = Annotated[list[int], BeforeValidator(_one_wrong_item)]
Bias = Annotated[dict[str, float], BeforeValidator(_one_wrong_item)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)

    model: str | None = None
    """Absent: the model that is served."""


class StreamOptions(BaseModel):
    """Only with `stream`."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(_Body):
    """What chat and plain completions have in common; null is as good as absent everywhere."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stop: Stop = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: Bias | None = None
    prompt_logprobs: int | None = None
    response_format: ResponseFormat = None
    structured_outputs: StructuredOutputs = None
    guided_json: Anything = None
    guided_regex: Anything = None
    guided_choice: Anything = None
    guided_grammar: Anything = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    request_id: str | None = None
    user: str | None = None

    @property
    def echoed_logprobs(self) -> int | None:
        """The most likely tokens that are wanted for each token of an echoed prompt; None: no log probabilities."""
        return None


class ChatBody(GenerationBody):
    """`POST /v1/chat/completions`."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateVariables = None
    tools: Tools = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None


class CompletionBody(GenerationBody):
    """`POST /v1/completions`."""

    prompt: Prompt
    echo: bool | None = None
    logprobs: int | None = None
    add_special_tokens: bool | None = None

    @property
    def echoed_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None


class TokenizeBody(_Body):
    """`POST /tokenize`: either a prompt, or what a chat has of its prompt."""

    prompt: Annotated[Any, WithJsonSchema({"anyOf": [_TEXT, _NOTHING]})] = None
    messages: Annotated[Any, WithJsonSchema({"anyOf": [_MESSAGES, _NOTHING]})] = None
    tools: Tools = None
    tool_choice: ToolChoice = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateVariables = None
    return_token_strs: bool | None = None


class DetokenizeBody(_Body):
    """`POST /detokenize`."""

    tokens: TokenIds


# Field → values that ask for nothing, besides null.
NOT_SERVED: Final[Mapping[str, tuple[Any, ...]]] = {
    "adapter": (),
    "allowed_token_ids": (),
    "audio": (),
    "bad_words": ([],),
    "chat_template": (),
    "documents": ([],),
    "function_call": ("none",),
    "functions": ([],),
    "logits_processors": ([],),
    "lora_path": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prompt_embeds": (),
    "return_tokens_as_token_ids": (False,),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
}

B = TypeVar("B", bound=_Body)


def parse_body(kind: type[B], value: Mapping[str, Any]) -> B:
    """Check the fields. Raises `ApiError` with the first field that is wrong."""
    for name, harmless in NOT_SERVED.items():
        given = value.get(name)
        if given is not None and given not in harmless:
            raise unsupported(name)
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise first_problem(error) from None


def first_problem(error: ValidationError) -> ApiError:
    """The first field that is wrong, without its value."""
    problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
    param = ".".join(str(part)[:80] for part in problem["loc"])
    message = "is required" if problem["type"] == "missing" else problem["msg"][0].lower() + problem["msg"][1:]
    return invalid(f"{param}: {message}" if param else message, param=param or None)
