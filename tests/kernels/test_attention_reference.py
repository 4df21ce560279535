"""The attention references against plain loops in fp64 over the dequantised cache, at fp32 tolerance."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from pagefleet_kernels.layout import FrameLayout, Precision
from pagefleet_kernels.paged_decode import paged_decode
from pagefleet_kernels.paged_prefill import paged_prefill
from pagefleet_kernels.tables import ChunkTable, FrameTable, Masking, OpenTable
from pagefleet_kernels.testing import POISON, Cache, plain_attention

LAYOUT = FrameLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=8)
SCALE = 0.25
TOLERANCE = {"rtol": 1e-4, "atol": 3e-6}  # fp32 sums of up to 200 terms of size 1

MIXES = {
    "bf16": [Precision.BF16],
    "fp8_e4m3": [Precision.FP8_E4M3],
    "fp8_e5m2": [Precision.FP8_E5M2],
    "int8": [Precision.INT8],
    "int4": [Precision.INT4],
    "fp8, then bf16, then int4": [Precision.FP8_E4M3, Precision.BF16, Precision.INT4],
    "int8, then fp8, then int8": [Precision.INT8, Precision.FP8_E5M2, Precision.INT8],
}
MASKS = {
    "all": Masking(),
    "window": Masking(window=20),
    "window 1": Masking(window=1),
    "window and sinks": Masking(window=17, sinks=4),
    "soft cap": Masking(soft_cap=2.0),
}


def sealed_boundary(sequence, position):
    """The groups before a position's own are sealed."""
    return sequence.group_of(position)[0]


def filled_for_decode(lengths, mix):
    cache = Cache(LAYOUT, 120)
    for length in lengths:
        cache.add(length, mix)
    sealed_until = [sealed_boundary(s, s.length - 1) if s.length else 0 for s in cache.sequences]
    for sequence, until in zip(cache.sequences, sealed_until, strict=True):
        cache.fill(sequence, until, sequence.length)
    return cache, *cache.tables(sealed_until, lengths)


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_decode_is_plain_attention_over_what_the_last_token_sees(mix, masking, batch_invariant):
    lengths = [1, 0, 7, 8, 9, 16, 17, 33, 90]
    cache, sealed, open_table = filled_for_decode(lengths, mix)
    queries = torch.randn(len(lengths), 6, 16, generator=torch.Generator().manual_seed(9))
    before = cache.pool.clone()
    for layer in range(2):
        got = paged_decode(
            queries,
            cache.pool,
            LAYOUT,
            layer,
            sealed,
            open_table,
            scale=SCALE,
            masking=masking,
            batch_invariant=batch_invariant,
            impl="reference",
        )
        for row, sequence in enumerate(cache.sequences):
            if sequence.length == 0:
                assert bool((got[row] == 0).all())
                continue
            seen = cache.seen(sequence, layer, sequence.length - 1)
            want = plain_attention(queries[row], seen, SCALE, masking)
            torch.testing.assert_close(got[row].double(), want, **TOLERANCE)
    assert bool((cache.pool == before).all())


class Products(TorchFunctionMode):
    """Shapes of all matrix products."""

    def __init__(self):
        super().__init__()
        self.shapes = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.__matmul__, torch.Tensor.matmul, torch.matmul):
            self.shapes.append(tuple(tuple(operand.shape) for operand in args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_batch_invariant_products_of_a_token_have_one_shape_in_decode_and_in_prefill(mix):
    """A library may choose its algorithm by shape, the number of products in a batch included."""
    length = 90
    cache, sealed, open_table = filled_for_decode([length], mix)
    arguments = {"scale": SCALE, "batch_invariant": True, "impl": "reference"}
    with Products() as decode:
        paged_decode(torch.zeros(1, 4, 16), cache.pool, LAYOUT, 0, sealed, open_table, **arguments)
    cache, sealed, open_table = filled_for_prefill([(0, length)], mix)
    (sequence,) = cache.sequences
    chunks = ChunkTable(
        offsets=torch.tensor([0, length], dtype=torch.int32),
        positions=torch.arange(length, dtype=torch.int32),
        group_starts=torch.tensor([sequence.group_of(p)[0] for p in range(length)], dtype=torch.int32),
        sealed=sealed,
        open=open_table,
    )
    raw = sequence.keys, sequence.values
    with Products() as prefill:
        paged_prefill(torch.zeros(length, 4, 16), *raw, chunks, cache.pool, LAYOUT, 0, **arguments)
    found = [shapes for shapes in decode.shapes if shapes[1][0]]  # a precision without frames is no product
    assert found
    assert [shapes for shapes in prefill.shapes if shapes[1][0]][-len(found) :] == found


def filled_for_prefill(chunks, mix):
    """chunks: (start, end) per sequence. Groups that end within the chunk are sealed, as the engine does per layer."""
    cache = Cache(LAYOUT, 120)
    open_until, sealed_until = [], []
    for start, end in chunks:
        sequence = cache.add(end, mix)
        own = sequence.group_of(start)[0]
        sealed_until.append(own)
        open_until.append(start)
        cache.fill(sequence, own, start)
    _, open_table = cache.tables(sealed_until, open_until)
    for (_, end), sequence, before in zip(chunks, cache.sequences, sealed_until, strict=True):
        for first, size, precision in sequence.groups:
            if first >= before and first + size <= end:
                cache.seal(sequence, first, size, precision)
    sealed, _ = cache.tables(sealed_until, open_until)
    return cache, sealed, open_table


CHUNKS = [(0, 1), (0, 40), (5, 12), (16, 33), (30, 30), (47, 90)]


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
@pytest.mark.parametrize("masking", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_prefill_sees_sealed_values_before_its_group_and_raw_ones_inside(mix, masking, batch_invariant):
    cache, sealed, open_table = filled_for_prefill(CHUNKS, mix)
    layer = 1
    pieces = list(zip(cache.sequences, CHUNKS, strict=True))
    keys = torch.cat([s.keys[a:b] + layer for s, (a, b) in pieces])
    values = torch.cat([s.values[a:b] - layer for s, (a, b) in pieces])
    positions = torch.cat([torch.arange(a, b) for a, b in CHUNKS]).int()
    group_starts = torch.tensor([s.group_of(p)[0] for s, (a, b) in pieces for p in range(a, b)], dtype=torch.int32)
    offsets = torch.tensor([0, *torch.tensor([b - a for a, b in CHUNKS]).cumsum(0).tolist()], dtype=torch.int32)
    queries = torch.randn(keys.shape[0], 6, 16, generator=torch.Generator().manual_seed(9))
    got = paged_prefill(
        queries,
        keys,
        values,
        ChunkTable(offsets=offsets, positions=positions, group_starts=group_starts, sealed=sealed, open=open_table),
        cache.pool,
        LAYOUT,
        layer,
        scale=SCALE,
        masking=masking,
        batch_invariant=batch_invariant,
        impl="reference",
    )
    row = 0
    for sequence, (start, end) in pieces:
        for position in range(start, end):
            seen = cache.seen(sequence, layer, position)
            want = plain_attention(queries[row], seen, SCALE, masking)
            torch.testing.assert_close(got[row].double(), want, **TOLERANCE)
            row += 1


def of_rows(table, rows):
    return FrameTable(
        precision=table.precision, frames=table.frames[rows], starts=table.starts[rows], counts=table.counts[rows]
    )


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES.keys())
def test_batch_invariant_bits_are_those_of_the_solo_run_and_of_prefill(mix):
    lengths = [50, 3, 90, 17]
    queries = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(9))
    cache, sealed, open_table = filled_for_decode(lengths, mix)

    def decode(rows):
        own = OpenTable(
            frames=open_table.frames[rows], starts=open_table.starts[rows], lengths=open_table.lengths[rows]
        )
        tables = [of_rows(table, rows) for table in sealed]
        return paged_decode(
            queries[rows], cache.pool, LAYOUT, 0, tables, own, scale=SCALE, batch_invariant=True, impl="reference"
        )

    together = decode([0, 1, 2, 3])
    for row in range(4):
        assert torch.equal(decode([row])[0], together[row])
        sequence = cache.sequences[row]
        last = sequence.length - 1
        group = sequence.group_of(last)[0]
        # the same token as the last one of a chunk that holds its whole group so far
        chunk_queries = torch.randn(sequence.length - group, 6, 16)
        chunk_queries[-1] = queries[row]
        prefilled = paged_prefill(
            chunk_queries,
            sequence.keys[group:],
            sequence.values[group:],
            ChunkTable(
                offsets=torch.tensor([0, sequence.length - group]),
                positions=torch.arange(group, sequence.length).int(),
                group_starts=torch.full((sequence.length - group,), group).int(),
                sealed=[of_rows(table, [row]) for table in sealed],
                open=none_open(group),
            ),
            cache.pool,
            LAYOUT,
            0,
            scale=SCALE,
            batch_invariant=True,
            impl="reference",
        )
        assert torch.equal(prefilled[-1], together[row])


def none_open(start):
    return OpenTable(
        frames=torch.zeros((1, 1)).int(), starts=torch.tensor([start]).int(), lengths=torch.tensor([0]).int()
    )


def test_a_pool_of_poison_really_is_nan():
    assert bool(torch.full((4,), POISON, dtype=torch.uint8).view(torch.float32).isnan().all())
