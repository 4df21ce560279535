"""Index tables in one buffer, sizes of padded steps, and columns that grow with their requests."""

import itertools

import numpy as np

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.table import FrameTable, SealedGroup
from pagefleet_engine.runtime.buckets import Buckets
from pagefleet_engine.runtime.packed import pack
from pagefleet_engine.runtime.sealed_tables import SealedTables, table_arrays
from pagefleet_engine.scheduling.output import Context
from pagefleet_engine.testing import raw_chunk


def test_arrays_come_back_aligned_and_in_order():
    arrays = [np.arange(5), np.zeros((2, 0)), np.arange(12).reshape(3, 4), np.arange(40)]
    packed = pack([array.astype(np.int32) for array in arrays])
    views = packed.views()
    assert [view.tolist() for view in views] == [array.tolist() for array in arrays]
    assert [view.storage_offset() % 32 for view in views] == [0, 0, 0, 0]
    assert packed.buffer.numel() == 32 + 0 + 32 + 64


def test_rows_grow_in_steps_and_widths_double():
    buckets = Buckets(enabled=True)
    assert [buckets.rows(n) for n in (1, 2, 3, 5, 8, 9, 17, 64, 65, 97)] == [1, 2, 4, 8, 8, 16, 24, 64, 96, 128]
    assert [buckets.width(n) for n in (1, 16, 17, 33, 1000)] == [16, 16, 32, 64, 1024]


def test_a_bucket_holds_what_it_is_for_and_wastes_little():
    buckets = Buckets(enabled=True)
    for count in range(1, 600):
        assert count <= buckets.rows(count) <= max(2 * count - 1, count + 31) or count == 1
        assert buckets.rows(buckets.rows(count)) == buckets.rows(count)
    assert len({buckets.rows(n) for n in range(1, 257)}) == 17


def test_without_graphs_nothing_is_padded():
    assert (Buckets().rows(5), Buckets().width(3)) == (5, 3)


def request_over(table, count):
    return raw_chunk("a", list(range(400)), start=0, end=1, frames=[0])._replace(context=Context(table, count))


def frames_of(found):
    return {str(precision): list(columns.frames) for precision, columns in found.items()}


def test_tables_follow_growth_replacement_and_shrinking():
    table, tables = FrameTable(), SealedTables()
    kinds = itertools.cycle((Precision.FP8_E4M3, Precision.BF16))
    table.sealed += [SealedGroup(frame, 16 * frame, 16, kind) for frame, kind in zip(range(4), kinds, strict=False)]
    assert frames_of(tables.of(request_over(table, 3))) == {"fp8_e4m3": [0, 2], "bf16": [1]}
    assert frames_of(tables.of(request_over(table, 4))) == {"fp8_e4m3": [0, 2], "bf16": [1, 3]}
    table.sealed[0] = table.sealed[0]._replace(frame=9)
    table.epoch += 1
    assert frames_of(tables.of(request_over(table, 4))) == {"fp8_e4m3": [9, 2], "bf16": [1, 3]}
    assert frames_of(tables.of(request_over(table, 2))) == {"fp8_e4m3": [9], "bf16": [1]}
    tables.forget(["a", "unknown"])
    assert frames_of(tables.of(request_over(FrameTable(), 0))) == {}


def test_a_request_with_the_id_of_an_earlier_one_begins_anew():
    first, second, tables = FrameTable(), FrameTable(), SealedTables()
    first.sealed += [SealedGroup(3, 0, 8, Precision.BF16), SealedGroup(4, 8, 8, Precision.BF16)]
    second.sealed += [SealedGroup(6, 0, 8, Precision.BF16), SealedGroup(4, 8, 8, Precision.BF16)]
    assert frames_of(tables.of(request_over(first, 2))) == {"bf16": [3, 4]}
    assert frames_of(tables.of(request_over(second, 2))) == {"bf16": [6, 4]}


def test_no_more_requests_are_remembered_than_can_run():
    table, tables = FrameTable(), SealedTables()
    table.sealed.append(SealedGroup(7, 0, 8, Precision.BF16))
    for index in range(5000):
        tables.of(request_over(table, 1)._replace(request_id=str(index)))
    assert len(tables._known) == 4096
    assert frames_of(tables.of(request_over(table, 1)._replace(request_id="0"))) == {"bf16": [7]}


def test_rows_of_padding_have_no_frames():
    table, tables = FrameTable(), SealedTables()
    table.sealed += [SealedGroup(7, 0, 8, Precision.BF16), SealedGroup(5, 8, 8, Precision.BF16)]
    columns = tables.of(request_over(table, 2))[Precision.BF16]
    frames, starts, counts = table_arrays([columns], num_rows=2, width=3)
    assert (frames.tolist(), starts.tolist(), counts.tolist()) == (
        [[7, 5, 0], [0, 0, 0]], [[0, 8, 0], [0, 0, 0]], [2, 0],
    )  # fmt: skip
