"""Writing, sealing, reading, demoting and copying frames in a poisoned pool: right bytes here, no bytes elsewhere."""

import pytest
import torch

from pagefleet_kernels.codec import encode_tiles
from pagefleet_kernels.copy_frames import copy_frames, frames_from_host, frames_to_host
from pagefleet_kernels.layout import FrameLayout, Part, Precision
from pagefleet_kernels.read_frames import read_frames
from pagefleet_kernels.seal_frames import demote_frames, seal_frames, seal_open_frames
from pagefleet_kernels.write_open import write_open

LAYOUT = FrameLayout(num_layers=2, num_kv_heads=3, head_dim=64)
POISON = 0xFF  # NaN in bf16, E4M3, E5M2 and fp32


def poisoned_pool(num_frames, layout=LAYOUT):
    return torch.full((num_frames, layout.frame_bytes), POISON, dtype=torch.uint8)


def tokens(count, layout=LAYOUT, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (count, layout.num_kv_heads, layout.head_dim)
    return torch.randn(shape, generator=generator).bfloat16(), torch.randn(shape, generator=generator).bfloat16()


@pytest.mark.parametrize("precision", list(Precision))
def test_sealed_values_read_back_as_the_codec_says_and_other_frames_are_untouched(precision):
    pool = poisoned_pool(6)
    size = LAYOUT.tokens_per_frame(precision)
    keys, values = (x.view(2, size, 3, 64) for x in tokens(2 * size))
    frames = torch.tensor([4, 1])
    for layer in range(2):
        seal_frames(pool, LAYOUT, layer, precision, frames, keys, values)
    for layer in range(2):
        got = read_frames(pool, LAYOUT, layer, precision, frames)
        for part, given, read in zip(Part, (keys, values), got, strict=True):
            for group in range(2):
                for head in range(3):
                    tile, scale = encode_tiles(given[group, :, head], part, precision, LAYOUT)
                    row = pool[frames[group]]
                    offset = LAYOUT.tile_offset(layer, part, head)
                    assert bool((row[offset : offset + LAYOUT.tile_bytes] == tile).all())
                    at = LAYOUT.scale_offset(layer, part, head)
                    assert row[at : at + 4].view(torch.float32).item() == scale.item()
            error = (read - given.float()).abs().max().item()
            assert error <= {"bf16": 0, "fp8_e4m3": 0.15, "fp8_e5m2": 0.4, "int8": 0.02, "int4": 0.25}[precision]
    assert bool((pool[[0, 2, 3, 5]] == POISON).all())
    assert bool((pool[:, LAYOUT.scale_offset(2, 0, 0) :] == POISON).all())


@pytest.mark.parametrize("precision", [p for p in Precision if p is not Precision.BF16])
def test_sealing_open_frames_in_place_gives_the_bytes_of_sealing_the_values(precision):
    size, opens = LAYOUT.tokens_per_frame(precision), LAYOUT.open_frames_per_group(precision)
    pool, want = poisoned_pool(2 * opens + 1), poisoned_pool(2 * opens + 1)
    frames = torch.arange(2 * opens).view(opens, 2).T + 1
    for layer in range(2):
        keys, values = tokens(2 * size, seed=layer)
        position = torch.arange(size)
        for group in range(2):
            own = slice(group * size, (group + 1) * size)
            target = frames[group][position // 16]
            write_open(pool, LAYOUT, layer, target, position % 16, keys[own], values[own])
        shape = (2, size, 3, 64)
        seal_frames(want, LAYOUT, layer, precision, frames[:, 0], keys.view(shape), values.view(shape))
    seal_open_frames(pool, LAYOUT, range(2), precision, frames)
    assert bool((pool[frames[:, 0]] == want[frames[:, 0]]).all())
    assert bool((pool[0] == POISON).all())


@pytest.mark.parametrize("slot", [0, 1, 14, 15])
def test_a_token_is_written_to_its_slot_and_nowhere_else(slot):
    pool = poisoned_pool(3)
    keys, values = tokens(2)
    write_open(pool, LAYOUT, 1, torch.tensor([2, -1]), torch.tensor([slot, 0]), keys, values)
    got = read_frames(pool, LAYOUT, 1, Precision.BF16, torch.tensor([2]), dtype=torch.bfloat16)
    assert bool((got[0][0, slot] == keys[0]).all())
    assert bool((got[1][0, slot] == values[0]).all())
    assert int((pool != POISON).sum()) <= 2 * 3 * 64 * 2
    assert bool((pool[:2] == POISON).all())


def test_demoting_two_bf16_frames_gives_the_fp8_frame_of_the_same_tokens():
    pool, want = poisoned_pool(3), poisoned_pool(3)
    for layer in range(2):
        keys, values = tokens(32, seed=layer)
        halves = (2, 16, 3, 64)
        seal_frames(pool, LAYOUT, layer, Precision.BF16, torch.tensor([2, 0]), keys.view(halves), values.view(halves))
        whole = (1, 32, 3, 64)
        seal_frames(want, LAYOUT, layer, Precision.FP8_E4M3, torch.tensor([2]), keys.view(whole), values.view(whole))
    demote_frames(pool, LAYOUT, Precision.FP8_E4M3, torch.tensor([[2, 0]]))
    assert bool((pool[2] == want[2]).all())


def test_frames_that_hold_no_whole_group_cannot_be_demoted():
    with pytest.raises(ValueError, match="precision int8: 30 tokens are no whole number of frames"):
        demote_frames(poisoned_pool(2), LAYOUT, Precision.INT8, torch.tensor([[0, 1]]))


def test_copies_and_a_swap_round_trip_keep_every_byte():
    pool = torch.randint(0, 256, (6, LAYOUT.frame_bytes), dtype=torch.uint8)
    before = pool.clone()
    copy_frames(pool, LAYOUT, torch.tensor([0, 3]), torch.tensor([5, 4]))
    assert bool((pool[[5, 4]] == before[[0, 3]]).all())
    assert bool((pool[:4] == before[:4]).all())
    host = torch.zeros((3, LAYOUT.frame_bytes), dtype=torch.uint8)
    frames_to_host(pool, LAYOUT, host, [1, 2], [2, 0])
    pool[1:3] = POISON
    frames_from_host(pool, LAYOUT, host, [1, 2], [2, 0])
    assert bool((pool[1:3] == before[1:3]).all())
    assert bool((host[1] == 0).all())


WRONG = {
    "a pool of another width": (lambda p, k: (p[:, :-1].contiguous(), k), "its rows must be"),
    "a pool of floats": (lambda p, k: (p.float(), k), "must be a contiguous uint8 tensor"),
    "keys of another length": (
        lambda p, k: (p, k[:, :-1]),
        r"keys \(1, 31, 3, 64\): must have the shape \(1, 32",
    ),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_shapes_are_refused_with_both_shapes(change, message):
    keys = torch.zeros(1, 32, 3, 64)
    pool, bad_keys = change(poisoned_pool(1), keys)
    with pytest.raises(ValueError, match=message):
        seal_frames(pool, LAYOUT, 0, Precision.FP8_E4M3, torch.tensor([0]), bad_keys, keys)
