"""Tokenizers inside GGUF files whose models nobody has here: what their pre-tokenizer's name implies."""

import gguf
import pytest
from tokenizers import pre_tokenizers

from pagefleet_engine.text.gguf_tokenizer import load_gguf_tokenizer
from pagefleet_engine.weights.gguf_file import GgufFile

TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "hello", "<s>", "</s>"]
MERGES = ["h e"]


def load(folder, pre, **settings):
    writer = gguf.GGUFWriter(str(folder / "m.gguf"), "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * (len(TOKENS) - 2) + [3, 3])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(TOKENS.index("<s>"))
    writer.add_eos_token_id(TOKENS.index("</s>"))
    if "add_bos" in settings:
        writer.add_add_bos_token(settings["add_bos"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return load_gguf_tokenizer(GgufFile(folder / "m.gguf"))


def words(tokenizer, text):
    return [tokenizer.token_text(token) for token in tokenizer.encode(text)]


@pytest.mark.parametrize(
    ("pre", "settings", "text", "tokens"),
    [
        pytest.param("llama-bpe", {}, "hello", ["<s>", "hello"], id="llama 3: a word that is a token, and a begin"),
        pytest.param("llama-bpe", {"add_bos": False}, "he", ["he"], id="llama 3: no begin where the file forbids it"),
        pytest.param("llama-bpe", {}, "1234", ["<s>", *"1234"], id="llama 3: digits"),
        pytest.param("smollm", {}, "hello", ["he", *"llo"], id="others: merges alone make tokens"),
        pytest.param("gpt-2", {"add_bos": True}, "he", ["<s>", "he"], id="others: a begin where the file wants it"),
    ],
)
def test_tokens(tmp_path, pre, settings, text, tokens):
    assert words(load(tmp_path, pre, **settings), text) == tokens


def test_qwen2_composes_characters_first(tmp_path):
    found = load(tmp_path, "qwen2")
    assert found.decode(found.encode("e\u0301")) == "\u00e9"
