"""Tools: the functions that a client offers, which of them may or must be called, and the calls in a dialogue so far.

Pure. How a model writes its calls is in `tool_parser`, and how it is told of the tools in `tools_telling`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from pagefleet_engine.server.errors import invalid, shorten
from pagefleet_engine.server.json_shape import json_fits
from pagefleet_engine.server.json_texts import JsonTexts
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.schema_rules import check_schema_rules
from pagefleet_engine.structured.spec import ANY_OBJECT, Json

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One function."""

    name: str
    definition: Json
    """As the client sent it, for the template."""
    parameters: Json
    """Schema of its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of a request that may call some."""

    tools: tuple[Tool, ...]
    forced: tuple[Tool, ...] = ()
    """Not empty: the answer is one or more calls of these and nothing else."""
    max_calls: int

    @property
    def definitions(self) -> list[Json]:
        """As the client sent them."""
        return [tool.definition for tool in self.tools]


def check_tools(tools: Any, choice: Any, parallel: bool | None, limits: Limits) -> ToolUse | None:
    """The tools that the model may call; None when there are none. Raises `ApiError`."""
    found = _check_list(tools, limits)
    kind, name = _check_choice(choice)
    if not found:
        if kind in ("required", "function"):
            raise invalid("tool_choice: there are no tools to choose from: send tools", param="tool_choice")
        return None
    if kind == "none":
        return None
    named = tuple(tool for tool in found if tool.name == name)
    if name is not None and not named:
        raise invalid(f"tool_choice: there is no tool {shorten(name)}", param="tool_choice")
    return ToolUse(
        tools=found,
        forced=named or (found if kind == "required" else ()),
        max_calls=1 if parallel is False else limits.tool_calls,
    )


def _check_list(tools: Any, limits: Limits) -> tuple[Tool, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise invalid("tools: must be a list of functions", param="tools")
    if len(tools) > limits.tools:
        raise invalid(f"tools: has {len(tools)} entries; at most {limits.tools} are served", param="tools")
    if not json_fits(tools, limits.tools_bytes):
        raise invalid(f"tools: have more than the {limits.tools_bytes} bytes that are served", param="tools")
    found = tuple(_check_tool(tool, f"tools.{position}", limits) for position, tool in enumerate(tools))
    names = [tool.name for tool in found]
    twice = next((position for position, name in enumerate(names) if name in names[:position]), None)
    if twice is not None:
        where = f"tools.{twice}.function.name"
        raise invalid(f"{where}: {shorten(names[twice])} is there twice", param=where)
    return found


def _check_tool(tool: Any, where: str, limits: Limits) -> Tool:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type") != "function":
        message = f'{where}: must be like {{"type": "function", "function": {{"name": ..., "parameters": ...}}}}'
        raise invalid(message, param=where)
    name, text = function.get("name"), function.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        param = f"{where}.function.name"
        raise invalid(f"{param}: must be 1 to 64 letters, digits, '_', '-' or '.'", param=param)
    if text is not None and not isinstance(text, str):
        raise invalid(f"{where}.function.description: must be a string", param=f"{where}.function.description")
    given = function.get("parameters")
    param = f"{where}.function.parameters"
    parameters = ANY_OBJECT if given is None else check_schema_rules(given, limits, param=param)
    kept = {key: value for key, value in function.items() if value is not None}
    return Tool(name=name, definition={"type": "function", "function": kept}, parameters=ANY_OBJECT | parameters)


def _check_choice(choice: Any) -> tuple[str, str | None]:
    """The kind of choice, and the name of the one function that it may name."""
    if choice is None:
        return "auto", None
    if choice in ("none", "auto", "required"):
        return str(choice), None
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        message = 'tool_choice: must be none, auto, required or like {"type": "function", "function": {"name": "..."}}'
        raise invalid(message, param="tool_choice")
    return "function", name


def check_tool_calls(value: Any, where: str, limits: Limits, texts: JsonTexts) -> list[Json]:
    """`tool_calls` of an assistant's message, with the arguments as values, as chat templates take them."""
    where = f"{where}.tool_calls"
    if not isinstance(value, list):
        raise invalid(f"{where}: must be a list", param=where)
    if len(value) > limits.tools:
        raise invalid(f"{where}: has {len(value)} entries; at most {limits.tools} are served", param=where)
    return [_check_call(call, f"{where}.{position}", texts) for position, call in enumerate(value)]


def _check_call(call: Any, where: str, texts: JsonTexts) -> Json:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"{where}: must be an object with id, type and function", param=where)
    if not isinstance(call.get("id"), str):
        raise invalid(f"{where}.id: must be a string", param=f"{where}.id")
    arguments = _parse_arguments(function.get("arguments"), f"{where}.function.arguments", texts)
    return {"id": call["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _parse_arguments(text: Any, where: str, texts: JsonTexts) -> Json:
    expects = "must be a JSON object in a string"
    if text == "":
        return {}  # clients write a call without arguments so
    value = texts.parse(text, param=where, expects=expects) if isinstance(text, str) else None
    if not isinstance(value, dict):
        raise invalid(f"{where}: {expects}", param=where)
    return value
