"""Model files that broke other inference servers, by the advisory that tells of them: refused in a line, never run.

Metadata that lies is in `test_gguf_file`, files that are cut or garbled in `test_loading`, and templates that reach for
Python are in `tests/engine/server/test_dialogue`.
"""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path

import pytest

from pagefleet_engine.errors import StartupError
from pagefleet_engine.weights.gguf_file import GgufFile
from pagefleet_engine.weights.loader import open_checkpoint

HUGE = 2**64 - 1


def gguf(*tensors: tuple, metadata: bytes = b"", num_metadata: int = 0, num_tensors: int | None = None) -> bytes:
    """A file with these descriptions of tensors: (dimensions, their count, type, offset); then 64 bytes of data."""
    packed = b""
    for i, (dims, num_dims, kind, offset) in enumerate(tensors):
        packed += struct.pack("<Q", 1) + bytes([97 + i]) + struct.pack("<I", num_dims)
        packed += b"".join(struct.pack("<Q", dim) for dim in dims) + struct.pack("<IQ", kind, offset)
    counts = struct.pack("<IQQ", 3, len(tensors) if num_tensors is None else num_tensors, num_metadata)
    return b"GGUF" + counts + metadata + packed + b"\0" * 64


def tokens(*lengths: int) -> bytes:
    """A vocabulary whose strings claim these lengths."""
    key = b"tokenizer.ggml.tokens"
    strings = b"".join(struct.pack("<Q", length) for length in lengths)
    return struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 8, len(lengths)) + strings


ALIGNMENT = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 0)
FILES = {
    "CVE-2024-21802: more dimensions than a tensor has": gguf(((1,), 2**31, 0, 0)),
    "CVE-2024-21802: more tensors than the file has bytes": gguf(num_tensors=HUGE),
    "CVE-2025-49847: a token of 2^31 bytes": gguf(metadata=tokens(2**31), num_metadata=1),
    "CVE-2025-49847: a token whose length is negative in 64 bits": gguf(metadata=tokens(HUGE), num_metadata=1),
    "CVE-2025-53630: dimensions whose product is 2^64": gguf(((2**32, 2**32), 2, 0, 0)),
    "CVE-2025-53630: a tensor of 2^64 - 1 values": gguf(((HUGE,), 1, 0, 0)),
    "CVE-2026-27940: sizes whose sum is 2^64": gguf(((2**61,), 1, 0, 0), ((2**61,), 1, 0, 2**63)),
    "CVE-2026-27940: an offset that leads to before the data": gguf(((1,), 1, 0, 2**64 - 8)),
    "CVE-2026-27940: an alignment of nothing": gguf(((1,), 1, 0, 0), metadata=ALIGNMENT, num_metadata=1),
}


@pytest.mark.parametrize("content", FILES.values(), ids=FILES.keys())
def test_a_hostile_gguf_file_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(StartupError) as caught:
        GgufFile(path)
    assert str(caught.value).startswith(f"{path}: truncated or damaged GGUF file")
    assert "\n" not in str(caught.value)


class Trap:
    """A pickle that writes a file when it is read."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self):
        return (Path.write_text, (self._marker, "read"))


def config(folder: Path, **more) -> None:
    known = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32, "hidden_size": 16}
    sizes = {"intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    rest = {"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4}
    (folder / "config.json").write_text(json.dumps(known | sizes | rest | more))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "model.safetensors"])
def test_cve_2025_24357_a_pickle_is_never_read(tmp_path, name):
    marker = tmp_path / "marker"
    config(tmp_path)
    (tmp_path / name).write_bytes(pickle.dumps(Trap(marker)))
    with pytest.raises(StartupError) as caught:
        open_checkpoint(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
    assert not marker.exists()
    pickle.loads((tmp_path / name).read_bytes())
    assert marker.exists(), "the trap is one"


def test_cve_2025_66448_code_that_comes_with_a_model_is_never_run(tmp_path):
    marker = tmp_path / "marker"
    code = f"open({str(marker)!r}, 'w')\nclass Model: pass\n"
    for name in ("modeling_trap.py", "configuration_trap.py", "__init__.py"):
        (tmp_path / name).write_text(code)
    where = {"AutoConfig": "configuration_trap.Model", "AutoModelForCausalLM": "modeling_trap.Model"}
    config(tmp_path, architectures=["TrapForCausalLM"], model_type="trap", auto_map=where, trust_remote_code=True)
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    with pytest.raises(StartupError, match="TrapForCausalLM"):
        open_checkpoint(str(tmp_path))
    assert not marker.exists()
