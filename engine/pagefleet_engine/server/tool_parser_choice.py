"""Which form of tool calls a model writes: the one that was asked for, or the one that its files speak of.

The chat template decides where it holds a form's marker, since a model may have been trained anew on an older
vocabulary; then the vocabulary, where a marker is one token.
"""

from __future__ import annotations

from typing import Final

from pagefleet_engine.api import Tokenizer
from pagefleet_engine.contract.arguments import AUTO
from pagefleet_engine.server.tool_parser import ToolForm
from pagefleet_engine.server.tool_parser_hermes import CLOSE, OPEN, HermesForm
from pagefleet_engine.server.tool_parser_llama3 import TAG, Llama3Form
from pagefleet_engine.server.tool_parser_mistral import ARGS, CALL_ID, MARK, MistralForm

_MARKERS: Final = {"hermes": OPEN, "mistral": MARK, "llama3_json": TAG}
"""What tells a form, in the order in which they are looked for."""


def choose_form(wanted: str, tokenizer: Tokenizer) -> ToolForm:
    """`wanted` is a value of `--tool-call-parser`. A model that shows no marker gets the form of Hermes."""
    name = find_form(tokenizer) if wanted == AUTO else wanted
    if name == "mistral":
        return _mistral(tokenizer)
    if name == "llama3_json":
        return Llama3Form(tag_id=_special_id(tokenizer, TAG))
    return HermesForm(open_id=_special_id(tokenizer, OPEN), close_id=_special_id(tokenizer, CLOSE))


def find_form(tokenizer: Tokenizer) -> str:
    """The name of the form whose marker the model knows."""
    source = tokenizer.template_source
    by_template = next((name for name, marker in _MARKERS.items() if marker in source), None)
    by_vocabulary = next((name for name, marker in _MARKERS.items() if _token_id(tokenizer, marker) is not None), None)
    return by_template or by_vocabulary or "hermes"


def _mistral(tokenizer: Tokenizer) -> MistralForm:
    source = tokenizer.template_source
    return MistralForm(
        mark_id=_special_id(tokenizer, MARK),
        args_id=_special_id(tokenizer, ARGS),
        call_id_id=_special_id(tokenizer, CALL_ID),
        is_named=ARGS in source if MARK in source else _token_id(tokenizer, ARGS) is not None,
    )


def _token_id(tokenizer: Tokenizer, marker: str) -> int | None:
    ids = tokenizer.encode(marker, add_special_tokens=False)
    return ids[0] if len(ids) == 1 else None


def _special_id(tokenizer: Tokenizer, marker: str) -> int | None:
    """Of a marker that is a special token, which answers do not show by themselves."""
    found = _token_id(tokenizer, marker)
    return found if found in tokenizer.special_token_ids else None
