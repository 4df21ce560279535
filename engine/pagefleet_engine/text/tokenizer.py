"""BPE over the `tokenizers` library: byte-level, as SmolLM2, Llama 3 and Qwen use it, or with byte fallback, as Llama 2
and Mistral 7B do."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum, auto
from typing import Any

import tokenizers

from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.text.chat import ChatTemplate
from pagefleet_engine.text.detokenizer import IncrementalDetokenizer


class Alphabet(Enum):
    """How entries of the vocabulary spell bytes."""

    BYTE_LEVEL = auto()
    """Every character stands for one byte."""
    BYTE_FALLBACK = auto()
    """Characters stand for themselves."""


class BpeTokenizer:
    """`pagefleet_engine.api.Tokenizer` over a BPE. Immutable, usable from any thread."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        vocab_size: int,
        special_ids: Collection[int],
        eos_token_ids: tuple[int, ...],
        bos_token_id: int | None,
        chat_template: ChatTemplate | None,
        alphabet: Alphabet = Alphabet.BYTE_LEVEL,
    ) -> None:
        self._backend = backend
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self._bos = [] if bos_token_id is None else [bos_token_id]
        self.special_token_ids = frozenset(special_ids)
        self.template_takes_tools = chat_template is not None and chat_template.takes_tools
        self.template_source = "" if chat_template is None else chat_template.source
        self._chat_template = chat_template
        added = backend.get_added_tokens_decoder()
        bytes_of = _BYTES_OF[alphabet]
        entries = ((backend.id_to_token(i), i in added) for i in range(vocab_size))
        self._bytes = tuple(bytes_of(token, literal) for token, literal in entries)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids; `add_special_tokens` puts the begin-of-sequence token first where the model wants one."""
        # `encode` keeps the interpreter's lock for as long as it takes, a second for a megabyte; a batch releases it.
        ids: list[int] = self._backend.encode_batch([text], add_special_tokens=False)[0].ids
        return [*self._bos, *ids] if add_special_tokens and ids[:1] != self._bos else ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token."""
        return self._bytes[token_id]

    def token_text(self, token_id: int) -> str:
        """One token as text; bytes that are no character become U+FFFD."""
        return self._bytes[token_id].decode("utf-8", errors="replace")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        longest: int | None = None,
    ) -> str:
        """The prompt text. Raises `RequestRefused` when there is no template or it refuses."""
        if self._chat_template is None:
            raise RequestRefused("this model has no chat template: use /v1/completions", param="messages")
        return self._chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            tools=tools,
            variables=variables,
            longest=longest,
        )

    def detokenizer(self, *, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self._shown_bytes if skip_special_tokens else self.token_bytes)

    def _shown_bytes(self, token_id: int) -> bytes:
        return b"" if token_id in self.special_token_ids else self._bytes[token_id]


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte: printable Latin-1 stands for itself, the rest follows from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str | None, literal: bool) -> bytes:
    """Bytes of a vocabulary entry. Ids without an entry (a padded embedding) have none."""
    if token is None:
        return b""
    if literal or any(char not in _ALPHABET for char in token):
        return token.encode()
    return bytes(_ALPHABET[char] for char in token)


_SINGLE_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_fallback(token: str | None, literal: bool) -> bytes:
    """The same, where a space is written as U+2581 and single bytes as `<0x0A>`."""
    if token is None:
        return b""
    if literal:
        return token.encode()
    if found := _SINGLE_BYTE.fullmatch(token):
        return bytes.fromhex(found[1])
    return token.replace("\u2581", " ").encode()


_BYTES_OF: Mapping[Alphabet, Callable[[str | None, bool], bytes]] = {
    Alphabet.BYTE_LEVEL: _byte_level,
    Alphabet.BYTE_FALLBACK: _byte_fallback,
}
