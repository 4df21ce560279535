"""What can be wrong with a model file, each in one line that names it; and the order of rotary rows."""

import gguf
import numpy as np
import pytest
import torch

from pagefleet_engine.errors import StartupError
from pagefleet_engine.testing import TINY, RandomCheckpoint, smollm2_file
from pagefleet_engine.weights.checkpoint import expected_shapes
from pagefleet_engine.weights.gguf_checkpoint import GgufCheckpoint, canonical_name, restore_rotary_rows
from pagefleet_engine.weights.loader import check_tensors, open_checkpoint

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name):
    stem, kind = name.removeprefix("model.layers.").rsplit(".", 1)
    if name.startswith("model.layers."):
        index, stem = stem.split(".", 1)
        return f"blk.{index}.{GGUF_NAMES[stem]}.{kind}"
    return f"{GGUF_NAMES[name.rsplit('.', 1)[0]]}.{kind}"


def write_gguf(path, *, arch="llama", without=(), extra=(), metadata=()):
    """A tiny GGUF in the layout that llama.cpp gives such files."""
    checkpoint = RandomCheckpoint(TINY)
    writer = gguf.GGUFWriter(str(path), arch)
    sizes = {
        "block_count": TINY.num_layers,
        "context_length": TINY.context_len,
        "embedding_length": TINY.hidden_size,
        "feed_forward_length": TINY.intermediate_size,
        "attention.head_count": TINY.num_heads,
        "attention.head_count_kv": TINY.num_kv_heads,
    } | dict(metadata)
    for key, value in sizes.items():
        writer.add_uint32(f"{arch}.{key}", value)
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", TINY.norm_eps)
    writer.add_token_list([f"t{i}" for i in range(TINY.vocab_size)])
    for name in expected_shapes(TINY):
        if name not in without:
            writer.add_tensor(gguf_name(name), to_llama_cpp(checkpoint, name))
    for name in extra:
        writer.add_tensor(name, np.zeros((4, 4), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def to_llama_cpp(checkpoint, name):
    """Rotary rows as its converter orders them: halves interleaved."""
    values = checkpoint.tensor(name)
    heads = {"q_proj": TINY.num_heads, "k_proj": TINY.num_kv_heads}.get(name.split(".")[-2])
    if heads is not None:
        values = values.view(heads, 2, -1, values.shape[-1]).transpose(1, 2).reshape(values.shape)
    return values.contiguous().numpy()


def test_a_file_gives_back_the_tensors_that_it_was_made_of(tmp_path):
    found = GgufCheckpoint(write_gguf(tmp_path / "m.gguf"))
    check_tensors(found)
    want = RandomCheckpoint(TINY)
    assert found.config == TINY
    assert all(torch.equal(found.tensor(name), want.tensor(name)) for name in expected_shapes(TINY))


def test_rotary_rows_return_from_pairs_to_halves():
    pairs = torch.tensor([[0.0], [4.0], [1.0], [5.0], [2.0], [6.0], [3.0], [7.0]])
    assert restore_rotary_rows(pairs, 1).flatten().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert restore_rotary_rows(pairs, 2).flatten().tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.12.attn_q.bias", "model.layers.12.self_attn.q_proj.bias"),
        ("output.weight", "lm_head.weight"),
        ("blk.0.ssm_in.weight", "blk.0.ssm_in.weight"),
    ],
)
def test_names_are_translated_and_unknown_ones_kept(name, want):
    assert canonical_name(name) == want


def test_a_missing_a_foreign_and_a_misshapen_tensor_are_all_named(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", without=["model.norm.weight"], extra=["blk.0.ssm_in.weight"])
    with pytest.raises(StartupError) as error:
        check_tensors(GgufCheckpoint(path))
    assert "1 missing: model.norm.weight" in str(error.value)
    assert "1 not used by this architecture: blk.0.ssm_in.weight" in str(error.value)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", metadata={"feed_forward_length": 65})
    with pytest.raises(StartupError, match=r"mlp.gate_proj.weight \[64, 48\] instead of \[65, 48\]"):
        check_tensors(GgufCheckpoint(path))


WRONG_METADATA = {
    "heads that do not divide": ({"attention.head_count": 5}, "5 heads cannot share 2"),
    "no heads": ({"attention.head_count": 0}, "m.gguf"),
    "no KV heads": ({"attention.head_count_kv": 0}, "m.gguf"),
}


@pytest.mark.parametrize(("metadata", "names"), WRONG_METADATA.values(), ids=WRONG_METADATA.keys())
def test_impossible_sizes_are_refused(tmp_path, metadata, names):
    with pytest.raises(StartupError, match=names):
        check_tensors(GgufCheckpoint(write_gguf(tmp_path / "m.gguf", metadata=metadata)))


def test_another_architecture_is_refused_by_name(tmp_path):
    with pytest.raises(StartupError, match="'mamba' is not supported"):
        GgufCheckpoint(write_gguf(tmp_path / "m.gguf", arch="mamba"))


def test_a_file_cut_anywhere_is_called_truncated(tmp_path):
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    for share in (0.0005, 0.01, 0.05, 0.3, 0.9, 0.999):
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[: max(4, int(share * len(whole)))])
        with pytest.raises(StartupError, match=r"cut\.gguf: truncated or damaged"):
            GgufCheckpoint(path)


def test_noise_after_the_magic_is_no_traceback(tmp_path):
    path = tmp_path / "noise.gguf"
    for seed in range(20):
        noise = torch.randint(0, 256, (400,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
        path.write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(noise.tolist()))
        with pytest.raises(StartupError):
            GgufCheckpoint(path)


PATHS = {
    "nothing there": (lambda folder: folder / "absent", "no such file or folder"),
    "an empty folder": (lambda folder: folder, "neither a .gguf file nor config.json"),
    "another kind of file": (lambda folder: make(folder / "x.bin", b"PK\x03\x04zip"), "not a GGUF file"),
    "an empty file": (lambda folder: make(folder / "x.gguf", b""), "not a GGUF file"),
}


def make(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("path_of", "says"), PATHS.values(), ids=PATHS.keys())
def test_a_wrong_path_is_named_with_the_flag(tmp_path, path_of, says):
    with pytest.raises(StartupError, match=says) as error:
        open_checkpoint(str(path_of(tmp_path)))
    assert str(error.value).startswith("--model ")


def test_a_folder_with_two_models_wants_a_choice(tmp_path):
    make(tmp_path / "a.gguf", b"")
    make(tmp_path / "b.gguf", b"")
    with pytest.raises(StartupError, match="name one of them"):
        open_checkpoint(str(tmp_path))


@pytest.mark.model
def test_the_package_folder_is_a_model():
    assert open_checkpoint(str(smollm2_file().parent)).config.num_layers == 30
