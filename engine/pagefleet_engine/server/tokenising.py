"""From the prompts and dialogues of requests to token ids, in the threads of `TextWorkers`."""

from __future__ import annotations

from dataclasses import dataclass

from pagefleet_engine.server.inputs import Message, Prompt, check_token_ids
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.tools import ToolUse
from pagefleet_engine.server.tools_telling import tell

TokenisedPrompt = tuple[tuple[int, ...], str]
"""Ids, and a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """What a chat template makes a prompt of."""

    messages: list[Message]
    use: ToolUse | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    """Those of a prompt, besides those that the template writes."""


async def tokenize_dialogue(service: Service, dialogue: Dialogue) -> tuple[int, ...]:
    """Ids of the prompt. Raises `ApiError`."""
    tokenizer, longest, use = service.engine.tokenizer, service.max_model_len(), dialogue.use
    knows_tools = tokenizer.template_takes_tools
    tools = use.definitions if use is not None and knows_tools else None

    def work() -> tuple[int, ...]:
        told = dialogue.messages if knows_tools else tell(dialogue.messages, use, service.tool_form)
        text = tokenizer.apply_chat_template(told, add_generation_prompt=dialogue.add_generation_prompt, tools=tools)
        service.text.check_length(text, longest, param="messages")
        return tuple(tokenizer.encode(text, add_special_tokens=dialogue.add_special_tokens))

    return await service.text.run(work, param="messages")


async def tokenize_prompts(
    service: Service, prompts: list[Prompt], *, add_special_tokens: bool
) -> list[TokenisedPrompt]:
    """Ids and text of each prompt. Raises `ApiError`."""
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
