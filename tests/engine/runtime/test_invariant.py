"""`--batch-invariant` bit by bit: a row's activations and logits, whatever came with it and however it was cut."""

import random

import pytest
import torch

from pagefleet_engine.layers.basic import Linear
from pagefleet_engine.layers.row_tiles import INVARIANT_ROWS, in_row_tiles
from pagefleet_engine.runtime.batch import build_batch
from pagefleet_engine.runtime.kv_cache import KvCache, frame_layout
from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampler
from pagefleet_engine.testing import TINY, raw_chunk, step_of, tiny_decoder

BLOCK = 16
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(90)]
FRAMES = [9, 3, 17, 4, 12, 30]


def runner_of(dtype):
    decoder = tiny_decoder(dtype=dtype)
    layout = frame_layout(TINY, block_size=BLOCK, raw_dtype=dtype)
    cache = KvCache(layout, num_frames=64, raw_dtype=dtype)
    return ModelRunner(decoder, cache, Sampler(seed=0, eos_token_ids=()), batch_invariant=True)


def neighbour(index, length):
    frames = range(33 + 3 * index, 36 + 3 * index)
    return raw_chunk(f"n{index}", [(index + j) % 256 for j in range(40)], start=0, end=length, frames=frames)


@torch.inference_mode()
def rows_of(runner, cuts, neighbours):
    """Activations of every row of PROMPT and the last row's logits, cut at `cuts`, beside other requests."""
    rows, start = [], 0
    for end in cuts:
        others = [
            raw_chunk(
                f"n{i}",
                [(i + j) % 256 for j in range(40)],
                start=0,
                end=length,
                frames=[33 + 3 * i, 34 + 3 * i, 35 + 3 * i],
            )
            for i, length in enumerate(neighbours)
        ]
        mine = raw_chunk("a", PROMPT, start=start, end=end, frames=FRAMES)
        batch = build_batch(step_of(*others, mine), BLOCK)
        hidden = runner.hidden(batch)
        rows.append(hidden[batch.requests[-1].rows])
        start = end
    return torch.cat(rows), runner.decoder.logits(hidden)[-1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_cuts_and_neighbours_do_not_change_a_bit(dtype):
    runner = runner_of(dtype)
    want_rows, want_logits = rows_of(runner, [90], [])
    rng = random.Random(5)
    for _ in range(8):
        cuts = sorted({*rng.sample(range(1, 90), rng.choice([1, 3, 10])), 90})
        neighbours = [rng.randrange(1, 40) for _ in range(rng.randrange(6))]
        rows, logits = rows_of(runner, cuts, neighbours)
        assert torch.equal(rows, want_rows), (cuts, neighbours)
        assert torch.equal(logits, want_logits), (cuts, neighbours)
    singles, _ = rows_of(runner, range(1, 91), [])
    assert torch.equal(singles, want_rows)


@pytest.mark.parametrize("shape", [(576, 960), (576, 3072), (1536, 576), (48, 80)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_a_row_of_a_tile_does_not_depend_on_its_place_or_company(shape, dtype):
    generator = torch.Generator().manual_seed(1)
    linear = Linear(torch.randn(shape[1], shape[0], generator=generator).to(dtype))
    rows = torch.randn(70, shape[0], generator=generator).to(dtype)
    alone = torch.cat([in_row_tiles(lambda x: (linear(x),), INVARIANT_ROWS, row[None])[0] for row in rows])
    assert torch.equal(in_row_tiles(lambda x: (linear(x),), INVARIANT_ROWS, rows)[0], alone)
