"""The real weights through the paged path, teacher-forced, against `transformers` on the same dequantised tensors.

Each prompt goes in as two uneven chunks and then token by token, all three in one batch.
fp32: every logit within 1e-3. bf16: the same best token wherever the fp32 reference prefers it by more than `BF16_GAP`.
"""

from pathlib import Path

import pytest
import torch

from pagefleet_engine.models.llama import Decoder
from pagefleet_engine.runtime.batch import build_batch
from pagefleet_engine.runtime.kv_cache import KvCache, frame_layout
from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampler
from pagefleet_engine.testing import raw_chunk, smollm2_file, step_of
from pagefleet_engine.text.gguf_tokenizer import load_gguf_tokenizer
from pagefleet_engine.weights.gguf_checkpoint import GgufCheckpoint
from pagefleet_engine.weights.loader import load_decoder

pytestmark = pytest.mark.model

NUM_TOKENS = 200
CHUNKS = (0, 37, 160)
BF16_GAP = 0.5
"""bf16 keeps 8 bits: after 30 layers two logits near 20 differ from the fp32 ones by up to about 0.25 each."""

TEXTS = (Path(__file__).parent / "texts.txt").read_text(encoding="utf-8").split("\n=====\n")
"""English prose, Python, and a mixture with numbers, accents and other scripts."""


@pytest.fixture(scope="module")
def checkpoint():
    return GgufCheckpoint(smollm2_file())


@pytest.fixture(scope="module")
def tokens(checkpoint):
    tokenizer = load_gguf_tokenizer(checkpoint.file)
    ids = [tokenizer.encode(text)[:NUM_TOKENS] for text in TEXTS]
    assert [len(prompt) for prompt in ids] == [NUM_TOKENS] * 3
    return ids


@pytest.fixture(scope="module")
def want(checkpoint, tokens):
    """Reference logits `[3, 200, V]` in fp32, from weights that transformers named and reordered itself."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    loaded = load_gguf_checkpoint(str(smollm2_file()), return_tensors=True, model_to_load=model)
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded["tensors"], strict=False, assign=True)
    model.tie_weights()
    model.requires_grad_(False).eval()
    with torch.inference_mode():
        return model(torch.tensor(tokens)).logits


def decoder_of(checkpoint, dtype) -> Decoder:
    return load_decoder(checkpoint, dtype=dtype, device=torch.device("cpu"), num_positions=1024)


def engine_logits(decoder, tokens, raw_dtype):
    """Logits `[3, 200, V]` of the paged path."""
    layout = frame_layout(decoder.config, block_size=16, raw_dtype=raw_dtype)
    cache = KvCache(layout, num_frames=40, raw_dtype=raw_dtype)
    cache.pool.fill_(0xFF)
    runner = ModelRunner(decoder, cache, Sampler(seed=0, eos_token_ids=()))
    frames = [list(range(first, 39, 3)) for first in range(3)]
    ends = [*CHUNKS[1:], *range(CHUNKS[-1] + 1, NUM_TOKENS + 1)]
    parts = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        chunks = [raw_chunk(str(i), tokens[i], start=start, end=end, frames=frames[i]) for i in range(3)]
        with torch.inference_mode():
            hidden = runner.hidden(build_batch(step_of(*chunks), 16))
            parts.append(decoder.logits(hidden).unflatten(0, (3, end - start)))
    return torch.cat(parts, dim=1)


def test_fp32_logits_are_those_of_transformers(checkpoint, tokens, want):
    got = engine_logits(decoder_of(checkpoint, torch.float32), tokens, torch.float32)
    assert float((got - want).abs().max()) < 1e-3


def test_bf16_prefers_the_same_token_wherever_the_reference_is_clear(checkpoint, tokens, want):
    got = engine_logits(decoder_of(checkpoint, torch.bfloat16), tokens, torch.bfloat16)
    best = want.topk(2, dim=-1)
    clear = best.values[..., 0] - best.values[..., 1] > BF16_GAP
    assert int(clear.sum()) > NUM_TOKENS
    assert torch.equal(got.argmax(-1)[clear], best.indices[..., 0][clear])
