"""The tokenizer inside a GGUF file: vocabulary, merges and special tokens from its metadata."""

from __future__ import annotations

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from pagefleet_engine.errors import StartupError
from pagefleet_engine.text.chat import ChatTemplate
from pagefleet_engine.text.tokenizer import BpeTokenizer
from pagefleet_engine.weights.gguf_file import GgufFile

_CONTROL, _USER_DEFINED = 3, 4
"""Token types of GGUF: control tokens are matched in text and hidden in output, user-defined ones only matched."""

_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "<|end_of_text|>")
"""Ends of a turn or text by name: models stop at more than the one end that the metadata names."""

_GPT4_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_LLAMA3 = ("llama-bpe", "llama3")


def load_gguf_tokenizer(file: GgufFile) -> BpeTokenizer:
    """Raises `StartupError` for a tokenizer kind that we do not have."""
    kind = file.text("tokenizer.ggml.model")
    if kind != "gpt2":
        raise StartupError(f"{file.path}: tokenizer {kind!r} is not supported; byte-level BPE (gpt2) is")
    tokens = file.strings("tokenizer.ggml.tokens")
    types = [int(value) for value in file.get("tokenizer.ggml.token_type") or [1] * len(tokens)]
    special = [i for i, token_type in enumerate(types) if token_type == _CONTROL]
    matched = [i for i, token_type in enumerate(types) if token_type in (_CONTROL, _USER_DEFINED)]
    is_llama3 = file.text("tokenizer.ggml.pre") in _LLAMA3
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[_pair(file, merge) for merge in file.strings("tokenizer.ggml.merges")],
            ignore_merges=is_llama3,  # a word that is a token stays whole
        )
    )
    if file.text("tokenizer.ggml.pre") == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(file)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(tokens[i], normalized=False, special=True) for i in matched])
    adds_bos = file.get("tokenizer.ggml.add_bos_token")
    adds_bos = is_llama3 if adds_bos is None else adds_bos
    bos = file.integer("tokenizer.ggml.bos_token_id") if adds_bos else None
    return BpeTokenizer(
        backend,
        vocab_size=len(tokens),
        special_ids=special,
        eos_token_ids=_eos_ids(file, tokens, special),
        bos_token_id=bos,
        chat_template=_chat_template(file, tokens),
    )


def _eos_ids(file: GgufFile, tokens: list[str], special: list[int]) -> tuple[int, ...]:
    named = {i for i in special if tokens[i] in _END_OF_TURN}
    return tuple(sorted(named | {file.integer("tokenizer.ggml.eos_token_id")}))


def _chat_template(file: GgufFile, tokens: list[str]) -> ChatTemplate | None:
    source = file.get("tokenizer.chat_template")
    if source is None:
        return None
    keys = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "padding_token_id"}
    ids = {name: file.get(f"tokenizer.ggml.{key}") for name, key in keys.items()}
    return ChatTemplate(str(source), special_tokens={n: tokens[i] for n, i in ids.items() if i is not None})


def _pre_tokenizer(file: GgufFile) -> pre_tokenizers.PreTokenizer:
    """How text is cut into words before merging, by the name that the file gives it."""
    name = file.text("tokenizer.ggml.pre")
    if name in ("smollm", "starcoder", "refact", "command-r"):
        parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        return pre_tokenizers.Sequence(parts)
    if name in ("gpt-2", "default"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in (*_LLAMA3, "qwen2"):
        words = _GPT4_WORDS.format(digits="" if name == "qwen2" else "{1,3}")
        split = pre_tokenizers.Split(Regex(words), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise StartupError(f"{file.path}: pre-tokenizer {name!r} is not supported")


def _pair(file: GgufFile, merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise StartupError(f"{file.path}: merge rule {merge!r} is damaged")
    return left, right
