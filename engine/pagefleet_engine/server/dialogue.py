"""How a client wants its dialogue shown to the model: the fields around `messages`. Pure; raises `ApiError`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pagefleet_engine.server.errors import invalid, shorten
from pagefleet_engine.server.inputs import Message, check_messages
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.schemas import ChatBody, TokenizeBody
from pagefleet_engine.server.tools import ToolUse

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_RESERVED: Final = frozenset(
    {
        *(
            "messages",
            "tools",
            "add_generation_prompt",
            "continue_final_message",
            "chat_template",
            "tokenize",
            "documents",
        ),
        *("raise_exception", "strftime_now", "range", "dict", "lipsum", "cycler", "joiner", "namespace", "loop"),
        *("self", "super", "caller", "varargs", "kwargs"),
    }
)
"""What the renderer itself, Jinja or an argument of other renderers is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """What a chat template makes a prompt of."""

    messages: list[Message]
    use: ToolUse | None = None
    add_generation_prompt: bool = True
    continues: bool = False
    """The last message is the beginning of the answer, and stays open."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Of the client, for the template."""
    add_special_tokens: bool = False
    """Those of a prompt, besides those that the template writes."""


def check_dialogue(body: ChatBody | TokenizeBody, use: ToolUse | None, limits: Limits) -> Dialogue:
    """What both kinds of request say about a dialogue."""
    messages = check_messages(body.messages, limits)
    continues = body.continue_final_message is True
    if continues:
        _check_open_end(messages, body)
    return Dialogue(
        messages=messages,
        use=use,
        add_generation_prompt=body.add_generation_prompt is not False and not continues,
        continues=continues,
        variables=check_variables(body.chat_template_kwargs, limits),
        add_special_tokens=isinstance(body, TokenizeBody) and body.add_special_tokens is True,
    )


def _check_open_end(messages: list[Message], body: ChatBody | TokenizeBody) -> None:
    param = "continue_final_message"
    if body.add_generation_prompt:
        raise invalid(f"{param}: not together with add_generation_prompt", param=param)
    last = messages[-1]
    if last["role"] != "assistant" or not last["content"] or last.get("tool_calls"):
        raise invalid(f"{param}: the last message must be the assistant's, with a text and without calls", param=param)


def check_variables(value: Any, limits: Limits) -> dict[str, Any]:
    """`chat_template_kwargs`: plain values under names that mean nothing else to a template."""
    where = "chat_template_kwargs"
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise invalid(f"{where}: must be an object", param=where)
    if len(value) > limits.template_variables:
        message = f"{where}: has {len(value)} entries; at most {limits.template_variables} are served"
        raise invalid(message, param=where)
    for name, item in value.items():
        _check_variable(name, item, limits, where)
    return value


def _check_variable(name: str, value: Any, limits: Limits, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise invalid(f"{where}: {shorten(name)} is no name: 1 to 64 letters, digits and '_'", param=where)
    param = f"{where}.{name}"
    if name in _RESERVED or name.endswith("_token"):
        raise invalid(f"{param}: has a meaning of its own here: leave it out", param=param)
    if value is not None and not isinstance(value, str | int | float):
        raise invalid(f"{param}: must be a string, a number, a boolean or null", param=param)
    if isinstance(value, str) and len(value) > limits.template_variable_chars:
        message = f"{param}: has {len(value)} characters; at most {limits.template_variable_chars} are served"
        raise invalid(message, param=param)
