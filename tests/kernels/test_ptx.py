"""The inline PTX that unpacks INT8 and INT4, executed here instruction by instruction for all 256 bytes.

Triton's interpreter cannot run inline PTX and a GPU may not be at hand: this file holds the few instructions it uses.
"""

import re

import pytest
import torch

from pagefleet_kernels import device_code


def execute(asm, word):
    """Run one block of PTX on a 32-bit input ($2); returns the outputs $0 and $1."""
    registers = {"$2": word}

    def value(operand):
        return registers[operand] if operand in registers else int(operand, 0)

    for statement in asm.strip(" {}").split(";"):
        opcode, _, rest = statement.strip().partition(" ")
        if not opcode or opcode == ".reg":
            continue
        target, *sources = [part.strip() for part in rest.split(",")]
        registers[target] = INSTRUCTIONS[opcode](*(value(source) for source in sources))
    return registers["$0"], registers["$1"]


def permute(a, b, selector):
    """prmt.b32: each nibble of the selector picks a byte of b:a."""
    raw = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    return int.from_bytes(bytes(raw[selector >> 4 * i & 7] for i in range(4)), "little")


def halves(word):
    raw = torch.tensor([word & 0xFFFF, word >> 16], dtype=torch.int32).to(torch.int16)
    return raw.view(torch.float16)


def subtract_halves(a, b):
    low, high = (halves(a) - halves(b)).view(torch.int16).tolist()
    return (low & 0xFFFF) | (high & 0xFFFF) << 16


INSTRUCTIONS = {
    "xor.b32": lambda a, b: a ^ b,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "mov.b32": lambda a: a,
    "prmt.b32": permute,
    "sub.rn.f16x2": subtract_halves,
}

BLOCKS = {
    "int8": (device_code._INT8_ASM, lambda byte: byte - 256 if byte > 127 else byte),
    "low nibble": (device_code._LOW_ASM, lambda byte: byte & 15),
    "high nibble": (device_code._HIGH_ASM, lambda byte: byte >> 4),
}


@pytest.mark.parametrize(("asm", "expected"), BLOCKS.values(), ids=BLOCKS.keys())
def test_four_bytes_become_four_halves_in_order(asm, expected):
    text = asm.value
    assert set(re.findall(r"[a-z]+\.[a-z0-9.]+(?= )", text)) - {".reg"} <= {*INSTRUCTIONS, "reg.b32"}
    for first in range(0, 256, 4):
        data = [first, (first + 1) * 7 % 256, (first + 2) * 31 % 256, first + 3]
        word = int.from_bytes(bytes(data), "little")
        low, high = execute(text, word)
        got = [*halves(low).tolist(), *halves(high).tolist()]
        assert got == [float(expected(byte)) for byte in data]
