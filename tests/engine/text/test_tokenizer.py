"""The tokenizer of the GGUF against transformers' own reading of the same file, and text out piece by piece."""

import json
from pathlib import Path

import pytest

from pagefleet_engine.errors import RequestRefused, StartupError
from pagefleet_engine.testing import ByteTokenizer, smollm2_file
from pagefleet_engine.text.chat import ChatTemplate
from pagefleet_engine.text.detokenizer import IncrementalDetokenizer
from pagefleet_engine.text.gguf_tokenizer import load_gguf_tokenizer
from pagefleet_engine.weights.gguf_file import GgufFile

GOLDEN = json.loads((Path(__file__).parent / "transformers.json").read_text(encoding="utf-8"))
"""Ids and prompts that transformers 5.24 makes of the same file, by `AutoTokenizer.from_pretrained(.., gguf_file=..)`.
Recorded, because it takes ten seconds to load."""

TEXTS = tuple(entry["text"] for entry in GOLDEN["texts"])


@pytest.fixture(scope="module")
def ours():
    return load_gguf_tokenizer(GgufFile(smollm2_file()))


@pytest.mark.model
def test_every_text_gets_the_ids_that_transformers_gives_it(ours):
    got = [ours.encode(text) for text in TEXTS]
    assert got == [entry["ids"] for entry in GOLDEN["texts"]]


@pytest.mark.model
def test_every_text_comes_back(ours):
    assert [ours.decode(ours.encode(text), skip_special_tokens=False) for text in TEXTS] == list(TEXTS)


@pytest.mark.model
def test_tokens_one_by_one_give_the_same_text_and_never_half_a_character(ours):
    for text in TEXTS:
        detokenizer = ours.detokenizer(skip_special_tokens=False)
        pieces = [detokenizer.push([token]) for token in ours.encode(text)]
        assert "".join(pieces) + detokenizer.flush() == text
        assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.model
def test_the_chat_template_gives_what_transformers_renders(ours):
    for entry in GOLDEN["prompts"]:
        got = ours.apply_chat_template(entry["messages"], add_generation_prompt=entry["add_generation_prompt"])
        assert got == entry["text"]


@pytest.mark.model
def test_special_tokens_are_hidden_when_asked_for(ours):
    ids = ours.encode("<|im_start|>user\nHi<|im_end|>")
    assert ours.decode(ids) == "user\nHi"
    assert ours.eos_token_ids == (0, 2)
    assert ours.token_bytes(2) == b"<|im_end|>"
    assert ours.token_text(ours.encode("é")[0]) in ("é", "\ufffd")


def test_a_character_is_held_back_until_its_last_byte_has_come():
    detokenizer = IncrementalDetokenizer(ByteTokenizer().token_bytes)
    assert [detokenizer.push([byte]) for byte in "aé😀".encode()] == ["a", "", "é", "", "", "", "😀"]
    assert detokenizer.flush() == ""


def test_an_unfinished_character_ends_as_a_replacement_mark():
    detokenizer = IncrementalDetokenizer(ByteTokenizer().token_bytes)
    assert detokenizer.push([0xF0, 0x9F]) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_a_wrong_byte_does_not_swallow_what_follows():
    detokenizer = IncrementalDetokenizer(ByteTokenizer().token_bytes)
    assert detokenizer.push([0xF0, 0x41]) == "\ufffdA"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[99].role }}",
        "{{ 1 // 0 }}",
    ],
    ids=["its own refusal", "a way out of the sandbox", "a change of its input", "a missing message", "a fault in it"],
)
def test_what_goes_wrong_in_a_template_is_the_requests_fault_alone(source):
    template = ChatTemplate(source, special_tokens={})
    with pytest.raises(RequestRefused) as refused:
        template.render([{"role": "user", "content": "hi"}])
    assert refused.value.param == "messages"
    assert "\n" not in str(refused.value)


def test_a_broken_template_is_a_startup_error():
    with pytest.raises(StartupError, match="chat template is broken"):
        ChatTemplate("{% for %}", special_tokens={})


def test_json_in_a_template_is_not_escaped_for_html():
    template = ChatTemplate("{{ tools | tojson }}", special_tokens={})
    assert template.render([], tools=[{"name": "a<b>'é'"}]) == '[{"name": "a<b>\'é\'"}]'
