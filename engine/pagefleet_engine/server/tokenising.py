"""From the prompts and dialogues of requests to token ids, in the threads of `TextWorkers`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pagefleet_engine.api import Tokenizer
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.server.dialogue import Dialogue
from pagefleet_engine.server.inputs import Message, Prompt, check_token_ids
from pagefleet_engine.server.service import Service
from pagefleet_engine.server.tools_telling import tell

TokenisedPrompt = tuple[tuple[int, ...], str]
"""Ids, and a text."""

_NO_CHARACTER: Final = "\ufdd0"
"""Unicode keeps it free for uses like this one."""


async def tokenize_dialogue(service: Service, dialogue: Dialogue) -> tuple[int, ...]:
    """Ids of the prompt. Raises `ApiError`."""
    tokenizer, longest = service.engine.tokenizer, service.max_model_len()

    def work() -> tuple[int, ...]:
        told = dialogue
        if not tokenizer.template_takes_tools:
            told = replace(dialogue, messages=tell(dialogue.messages, dialogue.use, service.tool_form), use=None)
        longest_text = service.text.longest(longest)
        text = _continued(tokenizer, told, longest_text) if told.continues else _render(tokenizer, told, longest_text)
        service.text.check_length(text, longest, param="messages")
        return tuple(tokenizer.encode(text, add_special_tokens=dialogue.add_special_tokens))

    return await service.text.run(work, param="messages")


def _render(tokenizer: Tokenizer, dialogue: Dialogue, longest: int) -> str:
    return tokenizer.apply_chat_template(
        dialogue.messages,
        add_generation_prompt=dialogue.add_generation_prompt,
        tools=None if dialogue.use is None else dialogue.use.definitions,
        variables=dialogue.variables,
        longest=longest,
    )


def _continued(tokenizer: Tokenizer, dialogue: Dialogue, longest: int) -> str:
    """The text up to the end of the last message. A mark behind that shows the place, whatever the template adds."""
    *others, last = dialogue.messages
    mark = _mark(last["content"])
    marked: Message = last | {"content": last["content"] + mark}
    text = _render(tokenizer, replace(dialogue, messages=[*others, marked]), longest + len(mark))
    end = text.rfind(mark)
    if end < 0 and len(text) <= longest:
        message = "continue_final_message: this model's chat template does not show how a message ends"
        raise RequestRefused(message, param="continue_final_message")
    return text if end < 0 else text[:end]


def _mark(content: str) -> str:
    """Longer than any run of its character in the text."""
    mark = _NO_CHARACTER
    while mark in content:
        mark += mark
    return mark


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
