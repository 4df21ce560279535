"""GGUF files: every kind of tensor that docs/models.md names, by independent arithmetic, and headers that lie."""

import struct

import gguf
import numpy as np
import pytest

from pagefleet_engine.errors import StartupError
from pagefleet_engine.weights.gguf_file import GgufFile
from pagefleet_engine.weights.gguf_header import check_counts

KIND = gguf.GGMLQuantizationType
ROWS = 3


def half(block, at):
    return float(np.frombuffer(block[at : at + 2].tobytes(), dtype=np.float16)[0])


def q8_0(block):
    return [half(block, 0) * np.int8(code) for code in block[2:].view(np.int8)]


def q4_0(block):
    codes = [*(block[2:] & 15), *(block[2:] >> 4)]
    return [half(block, 0) * (int(code) - 8) for code in codes]


def q4_1(block):
    codes = [*(block[4:] & 15), *(block[4:] >> 4)]
    return [half(block, 0) * int(code) + half(block, 2) for code in codes]


def q4_k(block):
    """Eight sub-blocks of 32 with a scale and a minimum of six bits each."""
    packed, codes = [int(byte) for byte in block[4:16]], block[16:]
    values = []
    for j in range(8):
        if j < 4:
            scale, least = packed[j] & 63, packed[j + 4] & 63
        else:
            scale = packed[j + 4] & 15 | packed[j - 4] >> 6 << 4
            least = packed[j + 4] >> 4 | packed[j] >> 6 << 4
        run = codes[j // 2 * 32 : j // 2 * 32 + 32]
        nibbles = run & 15 if j % 2 == 0 else run >> 4
        values += [half(block, 0) * scale * int(code) - half(block, 2) * least for code in nibbles]
    return values


def q6_k(block):
    """Sixteen sub-blocks of 16 with a signed scale; four low bits and two high bits of a code lie apart."""
    values = []
    for n in range(2):
        low, high = block[64 * n : 64 * n + 64], block[128 + 32 * n : 160 + 32 * n]
        scales = block[192 + 8 * n : 200 + 8 * n].view(np.int8)
        for quarter in range(4):
            for i in range(32):
                nibble = low[i + 32 * (quarter % 2)]
                nibble = nibble & 15 if quarter < 2 else nibble >> 4
                code = int(nibble) | (int(high[i]) >> 2 * quarter & 3) << 4
                values.append(half(block, 208) * int(scales[i // 16 + 2 * quarter]) * (code - 32))
    return values


QUANTISED = {
    KIND.Q8_0: (34, [0], q8_0),
    KIND.Q4_0: (18, [0], q4_0),
    KIND.Q4_1: (20, [0, 2], q4_1),
    KIND.Q4_K: (144, [0, 2], q4_k),
    KIND.Q6_K: (210, [208], q6_k),
}
"""Bytes of a block, where its fp16 numbers are, and what it means."""


def write(path, data, kind):
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_tensor("blk.0.attn_q.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GgufFile(path)


@pytest.mark.parametrize("kind", QUANTISED, ids=lambda kind: kind.name)
def test_a_quantised_tensor_has_the_values_that_its_bytes_mean(tmp_path, kind):
    size, numbers, meaning = QUANTISED[kind]
    blocks = np.random.default_rng(kind).integers(0, 256, (ROWS, 2, size), dtype=np.uint8)
    for at in numbers:
        scales = np.random.default_rng(at).uniform(-2, 2, (ROWS, 2, 1)).astype(np.float16)
        blocks[:, :, at : at + 2] = scales.view(np.uint8)
    got = write(tmp_path / "m.gguf", blocks.reshape(ROWS, -1), kind).tensor("blk.0.attn_q.weight")
    want = [[value for block in row for value in meaning(block)] for row in blocks]
    np.testing.assert_allclose(got.numpy(), np.array(want), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", [KIND.F32, KIND.F16, KIND.BF16], ids=lambda kind: kind.name)
def test_a_plain_tensor_keeps_its_values(tmp_path, kind):
    values = np.arange(-48, 48, dtype=np.float32).reshape(ROWS, 32) / 16  # exact in all three
    data = {KIND.F32: values, KIND.F16: values.astype(np.float16)}.get(kind, gguf.quantize(values, KIND.BF16))
    got = write(tmp_path / "m.gguf", data, kind).tensor("blk.0.attn_q.weight")
    assert got.tolist() == values.tolist()


def header(*fields):
    """A file of metadata only: (key, type, bytes of the value)."""
    packed = b"".join(
        struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value for key, kind, value in fields
    )
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + packed


def array(kind, num, content=b""):
    return struct.pack("<IQ", kind, num) + content


STRING = struct.pack("<Q", 2) + b"ab"
LIES = {
    "bytes that are not there": (header((b"k", 9, array(0, 2**62))), "takes 4611686018427387904 bytes of the 0"),
    "strings that are not there": (header((b"k", 9, array(8, 2**61))), "has 2305843009213693952 strings in 0 bytes"),
    "a string past the end": (header((b"k", 8, struct.pack("<Q", 99))), "takes 99 bytes of the 0"),
    "a string of an array past the end": (header((b"k", 9, array(8, 2, STRING + b"\xff" * 8))), "bytes of the 0"),
    "an array of arrays": (header((b"k", 9, array(9, 1, array(0, 0)))), "array of arrays"),
    "an unknown type": (header((b"k", 99, b"")), "unknown type 99"),
    "a key past the end": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "a metadata key takes"),
    "more keys than there are": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1), "a metadata key takes 8 bytes"),
    "no header": (b"GGUF\x03", "the header takes"),
}


@pytest.mark.parametrize(("content", "says"), LIES.values(), ids=LIES.keys())
def test_a_count_that_cannot_be_true_is_refused_at_once(tmp_path, content, says):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(StartupError, match=says) as error:
        GgufFile(path)
    assert str(error.value).startswith(f"{path}: truncated or damaged GGUF file")
    assert "\n" not in str(error.value)


def test_true_counts_pass(tmp_path):
    path = tmp_path / "m.gguf"
    values = [(b"a", kind, b"\0" * size) for kind, size in ((0, 1), (2, 2), (4, 4), (6, 4), (7, 1), (10, 8), (12, 8))]
    path.write_bytes(
        header(*values, (b"s", 8, STRING), (b"n", 9, array(5, 3, b"\0" * 12)), (b"t", 9, array(8, 1, STRING)))
    )
    check_counts(path)
