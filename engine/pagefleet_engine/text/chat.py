"""The model's chat template, rendered in a sandbox: a template comes with the weights and is not trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagefleet_engine.errors import RequestRefused, StartupError


class ChatTemplate:
    """A compiled template. Raises `StartupError` when the source is no valid Jinja."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            self._template = environment.from_string(source)
            self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise StartupError(f"the model's chat template is broken: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.source = source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt text. Raises `RequestRefused` when the template refuses these messages."""
        try:
            return self._template.render(
                messages=messages, add_generation_prompt=add_generation_prompt, tools=tools, **self._special_tokens
            )
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise RequestRefused(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    """Without HTML escapes, which Jinja's own filter would put into prompts."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
