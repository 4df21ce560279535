"""The model's chat template, rendered in a sandbox: a template comes with the weights and is not trusted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagefleet_engine.errors import RequestRefused, StartupError


class ChatTemplate:
    """A compiled template. Raises `StartupError` when the source is no valid Jinja.

    `with_tools` is another one, for dialogues with tools: some models have two.
    """

    def __init__(
        self, source: str, *, special_tokens: Mapping[str, str], with_tools: ChatTemplate | None = None
    ) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            self._template = environment.from_string(source)
            self.takes_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except jinja2.TemplateError as error:
            raise StartupError(f"the model's chat template is broken: {error}") from error
        self._environment_names = dict(environment.globals)
        self._special_tokens = dict(special_tokens)
        self._with_tools = with_tools
        self.takes_tools |= with_tools is not None
        self.source: str = source if with_tools is None else with_tools.source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        longest: int | None = None,
    ) -> str:
        """The prompt text. Raises `RequestRefused` when the template refuses these messages.

        `variables` are a client's: names that the template knows otherwise keep their meaning. Rendering stops soon
        after `longest` characters, so a text that is longer than that may not be all of it.
        """
        template = self._with_tools._template if tools and self._with_tools else self._template
        own = {"messages": messages, "add_generation_prompt": add_generation_prompt, "tools": tools}
        names = {**(variables or {}), **self._environment_names, **self._special_tokens, **own}
        try:
            return _joined(template.generate(names), longest)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise RequestRefused(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error


def _joined(pieces: Iterable[str], longest: int | None) -> str:
    """The pieces up to the one with which they are longer than `longest` characters."""
    taken, num_chars = [], 0
    for piece in pieces:
        taken.append(piece)
        num_chars += len(piece)
        if longest is not None and num_chars > longest:
            break
    return "".join(taken)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without HTML escapes, which Jinja's own filter would put into prompts; with the arguments that templates know."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Generation(Extension):
    """`{% generation %}` marks what an assistant said, for training. In a prompt it means nothing."""

    tags = {"generation"}  # noqa: RUF012  Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
