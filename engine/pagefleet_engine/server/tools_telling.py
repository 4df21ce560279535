"""How a model whose template knows no tools is told of them: in the system message, and in the texts of the dialogue.

Pure. Calls are written in the model's own form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pagefleet_engine.server.tool_parser import ToolForm
from pagefleet_engine.server.tools import ToolUse
from pagefleet_engine.structured.spec import Json


def tell(messages: Sequence[Json], use: ToolUse | None, form: ToolForm) -> list[Json]:
    """The dialogue for a template that knows no tools: they are in its texts."""
    told = [_without_tools(message, form) for message in messages]
    if use is None:
        return told
    text = _instructions(use, form)
    if told[0]["role"] == "system":
        return [told[0] | {"content": f"{told[0]['content']}\n\n{text}"}, *told[1:]]
    return [{"role": "system", "content": text}, *told]


def _without_tools(message: Json, form: ToolForm) -> Json:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    if "tool_calls" not in message:
        return message
    calls = form.write([call["function"] for call in message["tool_calls"]])
    text = "\n".join([*([message["content"]] if message["content"] else []), calls])
    return {"role": "assistant", "content": text}


def _instructions(use: ToolUse, form: ToolForm) -> str:
    lines = [json.dumps(tool.definition["function"], ensure_ascii=False) for tool in use.tools]
    example = form.write([{"name": "the function", "arguments": {"parameter": "value"}}])
    text = "You can call these functions:\n" + "\n".join(lines) + f"\nTo call one, answer in this form:\n{example}"
    if not use.forced:
        return text
    return f"{text}\nYou must call {' or '.join(tool.name for tool in use.forced)} now."
