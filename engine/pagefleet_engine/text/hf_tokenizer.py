"""The tokenizer of a Hugging Face folder: `tokenizer.json` with its configuration beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers

from pagefleet_engine.errors import StartupError
from pagefleet_engine.text.chat import ChatTemplate
from pagefleet_engine.text.tokenizer import BpeTokenizer
from pagefleet_engine.weights.hf_config import read_json


def load_hf_tokenizer(folder: Path, *, vocab_size: int) -> BpeTokenizer:
    """`vocab_size` is the width of the logits, which may exceed the tokenizer's. Raises `StartupError`."""
    raw = read_json(folder / "tokenizer.json")
    if not _is_byte_level(raw):
        raise StartupError(f"{folder / 'tokenizer.json'}: only byte-level BPE tokenizers are supported")
    try:
        backend = tokenizers.Tokenizer.from_str(json.dumps(raw))
    except ValueError as error:
        raise StartupError(f"{folder / 'tokenizer.json'}: {error}") from error
    settings = _optional(folder / "tokenizer_config.json")
    added = backend.get_added_tokens_decoder()
    bos = _token_id(backend, settings.get("bos_token"))
    return BpeTokenizer(
        backend,
        vocab_size=vocab_size,
        special_ids=[token_id for token_id, token in added.items() if token.special],
        eos_token_ids=_eos_ids(folder, backend, settings),
        bos_token_id=bos if settings.get("add_bos_token") else None,
        chat_template=_chat_template(folder, settings),
    )


def _is_byte_level(raw: dict[str, Any]) -> bool:
    parts = [raw.get("decoder") or {}]
    parts += parts[0].get("decoders", [])
    return (raw.get("model") or {}).get("type") == "BPE" and any(part.get("type") == "ByteLevel" for part in parts)


def _eos_ids(folder: Path, backend: tokenizers.Tokenizer, settings: dict[str, Any]) -> tuple[int, ...]:
    """What the generation configuration says, else the tokenizer's own end-of-sequence token."""
    found = _optional(folder / "generation_config.json").get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    ids = [int(token_id) for token_id in ids if token_id is not None]
    own = _token_id(backend, settings.get("eos_token"))
    return tuple(sorted({*ids, *([] if own is None else [own])}))


def _chat_template(folder: Path, settings: dict[str, Any]) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    source = path.read_text(encoding="utf-8") if path.is_file() else settings.get("chat_template")
    if not isinstance(source, str):
        return None
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    tokens = {name: _text(settings.get(name)) for name in names}
    return ChatTemplate(source, special_tokens={name: text for name, text in tokens.items() if text is not None})


def _token_id(backend: tokenizers.Tokenizer, token: Any) -> int | None:
    text = _text(token)
    return None if text is None else backend.token_to_id(text)


def _text(token: Any) -> str | None:
    """A token is a string, or an object with its text in `content`."""
    return token.get("content") if isinstance(token, dict) else token


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
