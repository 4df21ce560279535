"""Hugging Face folders: the ids that transformers makes of the same files, and what else the files decide."""

import json

import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from pagefleet_engine.errors import StartupError
from pagefleet_engine.text.chat import ChatTemplate
from pagefleet_engine.text.hf_tokenizer import load_hf_tokenizer

TEXTS = ["", "a", "Hello world", "  two  spaces ", "naïve ü 😀", "line\nline", "<s>a</s>"]
SPECIAL = ("<s>", "</s>")


def byte_level():
    """One token per byte, and no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def byte_fallback():
    """As SentencePiece models are converted: spaces as U+2581, unknown characters as their bytes."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581Helo wrdatspcn", "\u2581H", "ll"]
    made = tokenizers.Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(dict.fromkeys(tokens))},
            merges=[("\u2581", "H"), ("l", "l")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    strip = decoders.Strip(" ", 1, 0)
    made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    return made


def begins_with_bos(made):
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", made.token_to_id("<s>"))]
    )


def save(folder, made, *, settings=(), marks=True, **files):
    """The folder of a model whose special tokens are <s> and </s>."""
    made.add_special_tokens([tokenizers.AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    if marks:
        begins_with_bos(made)
    made.save(str(folder / "tokenizer.json"))
    files["tokenizer_config"] = {"bos_token": "<s>", "eos_token": "</s>"} | dict(settings)
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def load(folder):
    return load_hf_tokenizer(folder, vocab_size=600)


KINDS = {
    "byte-level": (byte_level, True),
    "byte-level, no begin": (byte_level, False),
    "byte fallback": (byte_fallback, True),
}


@pytest.mark.parametrize(("make", "marks"), KINDS.values(), ids=KINDS.keys())
def test_ids_are_those_of_transformers(tmp_path, make, marks):
    ours = load(save(tmp_path, make(), marks=marks))
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), bos_token="<s>", eos_token="</s>")
    for text in TEXTS:
        # A text that begins with the mark gets no second one: a chat template has put it there.
        want = theirs(text)["input_ids"]
        assert ours.encode(text) == (want[1:] if marks and text.startswith("<s>") else want), text
        assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]


def test_bytes_of_byte_fallback_make_the_text_again(tmp_path):
    ours = load(save(tmp_path, byte_fallback()))
    for text in TEXTS[1:-1]:  # the empty one has no tokens, and the last is one of marks
        ids = ours.encode(text, add_special_tokens=False)
        assert b"".join(map(ours.token_bytes, ids)).decode() == " " + text
    detokenizer = ours.detokenizer()
    pieces = [detokenizer.push([token]) for token in ours.encode("a😀", add_special_tokens=False)]
    assert pieces == [" ", "a", "", "", "", "😀"]


@pytest.mark.parametrize(
    ("settings", "marks", "begins"),
    [
        pytest.param({}, True, True, id="the tokenizer's own rule"),
        pytest.param({}, False, False, id="no rule"),
        pytest.param({"add_bos_token": False}, True, False, id="the configuration forbids it"),
        pytest.param({"add_bos_token": True}, False, True, id="the configuration wants it"),
    ],
)
def test_who_says_whether_a_text_begins_with_a_mark(tmp_path, settings, marks, begins):
    ours = load(save(tmp_path, byte_level(), settings=settings, marks=marks))
    assert ours.token_text(ours.encode("a")[0]) == ("<s>" if begins else "a")


def test_what_training_left_in_the_file_cuts_no_prompt(tmp_path):
    made = byte_level()
    made.enable_truncation(5)
    made.enable_padding(length=50)
    assert len(load(save(tmp_path, made)).encode("a" * 20, add_special_tokens=False)) == 20


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        pytest.param({}, [257], id="the tokenizer's own end"),
        pytest.param(
            {"generation_config": {"eos_token_id": [3, 4]}, "config": {"eos_token_id": 5}}, [3, 4, 257], id="both"
        ),
        pytest.param({"config": {"eos_token_id": 5}}, [5, 257], id="the model's, without a generation configuration"),
    ],
)
def test_where_an_answer_may_end(tmp_path, files, ends):
    assert list(load(save(tmp_path, byte_level(), **files)).eos_token_ids) == ends


def test_another_kind_of_tokenizer_is_refused(tmp_path):
    save(tmp_path, byte_level())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model": {"type": "WordPiece"}}))
    with pytest.raises(StartupError, match=r"tokenizer\.json: only BPE, byte-level or with byte fallback"):
        load(tmp_path)


def test_a_model_may_have_a_template_of_its_own_for_tools(tmp_path):
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools[0].name }}"}]
    ours = load(save(tmp_path, byte_level(), settings={"chat_template": templates}))
    assert ours.template_takes_tools
    assert ours.apply_chat_template([]) == "plain"
    assert ours.apply_chat_template([], tools=[{"name": "weather"}]) == "weather"


TEMPLATES = {
    "json as transformers writes it": (
        "{{ messages | tojson(ensure_ascii=True, separators=(',', ':')) }}",
        '["\\u00e9"]',
    ),
    "sorted json": ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", '{"a": 2, "b": 1}'),
    "the mark of what is learned": ("{% generation %}said{% endgeneration %}", "said"),
}


@pytest.mark.parametrize(("source", "text"), TEMPLATES.values(), ids=TEMPLATES.keys())
def test_what_templates_use(source, text):
    assert ChatTemplate(source, special_tokens={}).render(["é"]) == text
