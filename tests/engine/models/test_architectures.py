"""Llama, Mistral, Qwen2 and Qwen3 from safetensors, against `transformers` on random weights in fp32."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from pagefleet_engine.errors import StartupError
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.testing import naive_logits, tiny_core
from pagefleet_engine.text.hf_tokenizer import load_hf_tokenizer
from pagefleet_engine.weights.hf_config import read_hf_config
from pagefleet_engine.weights.loader import check_tensors, load_decoder, open_checkpoint

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 120,
    "max_position_embeddings": 512,
    "initializer_range": 0.5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "llama, untied": ("Llama", {"tie_word_embeddings": False}),
    "llama, tied, one KV head": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "llama with the scaling of Llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": None}),
    "qwen2 with biases": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3 with QK norm and its own head size": ("Qwen3", {"head_dim": 16}),
}


def saved_model(folder, kind, settings):
    """A random model of transformers, saved, with every bias and norm set to something."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**(SIZES | settings))
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize(("kind", "settings"), MODELS.values(), ids=MODELS.keys())
def test_logits_are_those_of_transformers(tmp_path, kind, settings):
    model = saved_model(tmp_path, kind, settings)
    decoder = load_decoder(
        open_checkpoint(str(tmp_path)), dtype=torch.float32, device=torch.device("cpu"), num_positions=512
    )
    tokens = [(7 * i * i + 3 * i + 5) % 120 for i in range(150)]
    with torch.inference_mode():
        want = model(torch.tensor([tokens])).logits[0]
    torch.testing.assert_close(naive_logits(decoder, tokens), want, rtol=1e-4, atol=1e-3)


def test_prompts_score_as_in_transformers(tmp_path):
    model = saved_model(tmp_path, *MODELS["qwen2 with biases"])
    decoder = load_decoder(
        open_checkpoint(str(tmp_path)), dtype=torch.float32, device=torch.device("cpu"), num_positions=512
    )
    tokens = [(7 * i * i + 3 * i + 5) % 120 for i in range(150)]
    with torch.inference_mode():
        logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)[:-1]
    core = tiny_core(decoder=decoder, max_num_batched_tokens=48)
    core.add(Request(request_id="a", prompt_token_ids=tokens, sampling=SamplingParams(max_tokens=0, prompt_logprobs=1)))
    outputs = []
    while core.has_work:
        outputs += core.step()
    [(_, output)] = outputs
    want = [float(row[token]) for row, token in zip(logprobs, tokens[1:], strict=True)]
    assert list(output.prompt_logprobs.logprobs) == pytest.approx(want, abs=1e-3)
    assert list(output.prompt_logprobs.top_ids) == logprobs.argmax(-1).tolist()


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    **SIZES,
}
REFUSED = {
    "another architecture": ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel' is not supported"),
    "no architecture": ({"architectures": None}, "'none' is not supported"),
    "a missing size": ({"hidden_size": None}, "config.json"),
    "another activation": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; silu is"),
    "a scaling we do not have": ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn' is not supported"),
}


@pytest.mark.parametrize(("change", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_a_configuration_that_cannot_run_is_refused(tmp_path, change, says):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(StartupError, match=says):
        read_hf_config(tmp_path)


def test_older_and_newer_places_of_the_rotary_base(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    assert read_hf_config(tmp_path).rope_base == 500000.0
    newer = {key: value for key, value in CONFIG.items() if key != "rope_theta"}
    path.write_text(json.dumps(newer | {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}))
    assert read_hf_config(tmp_path).rope_base == 7.0


def test_a_sliding_window_bounds_the_context(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"sliding_window": 128}))
    assert read_hf_config(tmp_path).context_len == 128
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"sliding_window": 128, "use_sliding_window": False}))
    assert read_hf_config(tmp_path).context_len == 512


def test_a_damaged_weight_file_is_named(tmp_path):
    saved_model(tmp_path, "Llama", {})
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(StartupError, match=r"model\.safetensors: truncated or damaged"):
        open_checkpoint(str(tmp_path))


def test_what_old_checkpoints_store_beside_the_weights_is_passed_over(tmp_path):
    saved_model(tmp_path, "Llama", {})
    path = tmp_path / "model.safetensors"
    tensors = load_file(path) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(tensors, path, metadata={"format": "pt"})
    check_tensors(open_checkpoint(str(tmp_path)))


def write_tokenizer(folder, **settings):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = {chr(97 + i): i for i in range(26)} | {"Ġ": 26, "ab": 27}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", **settings}))


def test_the_tokenizer_of_a_folder(tmp_path):
    template = "{{ bos_token }}{{ messages[0].content }}"
    write_tokenizer(tmp_path, add_bos_token=True, chat_template=template)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 29]}))
    found = load_hf_tokenizer(tmp_path, vocab_size=32)
    assert found.encode("ab cab") == [28, 27, 26, 2, 27]
    assert found.decode([28, 27, 26, 2, 27]) == "ab cab"
    assert found.eos_token_ids == (3, 29)
    assert found.apply_chat_template([{"role": "user", "content": "hi"}]) == "<s>hi"
    assert found.token_bytes(31) == b""
