"""The tokenizer of a Hugging Face folder: `tokenizer.json` with its configuration beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from pagefleet_engine.errors import StartupError
from pagefleet_engine.text.chat import ChatTemplate
from pagefleet_engine.text.tokenizer import Alphabet, BpeTokenizer
from pagefleet_engine.weights.hf_config import read_json


def load_hf_tokenizer(folder: Path, *, vocab_size: int) -> BpeTokenizer:
    """`vocab_size` is the width of the logits, which may exceed the tokenizer's. Raises `StartupError`."""
    raw = read_json(folder / "tokenizer.json")
    alphabet = _alphabet(raw)
    if alphabet is None:
        raise StartupError(f"{folder / 'tokenizer.json'}: only BPE, byte-level or with byte fallback, is supported")
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(raw))
    except ValueError as error:
        raise StartupError(f"{folder / 'tokenizer.json'}: {error}") from error
    # Left in the file by whoever trained with it; transformers sets both per call.
    backend.no_truncation()
    backend.no_padding()
    settings = _optional(folder / "tokenizer_config.json")
    added = backend.get_added_tokens_decoder()
    return BpeTokenizer(
        backend,
        vocab_size=vocab_size,
        special_ids=[token_id for token_id, token in added.items() if token.special],
        eos_token_ids=_eos_ids(folder, backend, settings),
        bos_token_id=_bos_id(backend, settings),
        chat_template=_chat_template(folder, settings),
        alphabet=alphabet,
    )


def _alphabet(raw: dict[str, Any]) -> Alphabet | None:
    """None for a kind of tokenizer that we do not have."""
    model, decoder = raw.get("model") or {}, raw.get("decoder") or {}
    if model.get("type") != "BPE":
        return None
    if any(part.get("type") == "ByteLevel" for part in (decoder, *decoder.get("decoders", []))):
        return Alphabet.BYTE_LEVEL
    return Alphabet.BYTE_FALLBACK if model.get("byte_fallback") else None


def _bos_id(backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> int | None:
    """The token that begins a text: where the configuration says nothing, what the tokenizer itself puts first."""
    if "add_bos_token" in settings:
        return _token_id(backend, settings.get("bos_token")) if settings["add_bos_token"] else None
    plain: list[int] = backend.encode("a", add_special_tokens=False).ids
    marked: list[int] = backend.encode("a", add_special_tokens=True).ids
    return marked[0] if marked[:1] != plain[:1] else None


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> tuple[int, ...]:
    """What the generation configuration says, else the model's; and the tokenizer's own end-of-sequence token."""
    generation = folder / "generation_config.json"
    found = _optional(generation if generation.is_file() else folder / "config.json").get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    ids = [int(token_id) for token_id in ids if token_id is not None]
    own = _token_id(backend, settings.get("eos_token"))
    return tuple(sorted({*ids, *([] if own is None else [own])}))


def _chat_template(folder: Path, settings: dict[str, Any]) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else settings.get("chat_template")
    if isinstance(source, list):  # several by name, of which transformers takes one for dialogues with tools
        named = {entry["name"]: entry["template"] for entry in source}
        source, for_tools = named.get("default"), named.get("tool_use")
    else:
        for_tools = None
    if not isinstance(source, str):
        return None
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    tokens = {name: text for name in names if (text := _text(settings.get(name))) is not None}
    with_tools = ChatTemplate(for_tools, special_tokens=tokens) if for_tools else None
    return ChatTemplate(source, special_tokens=tokens, with_tools=with_tools)


def _token_id(backend: tokenizers.Tokenizer, token: Any) -> int | None:
    text = _text(token)
    return None if text is None else backend.token_to_id(text)


def _text(token: Any) -> str | None:
    """A token is a string, or an object with its text in `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
