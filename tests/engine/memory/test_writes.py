"""Tokens into groups into frames: blocks of 4 tokens; BF16 groups have 4 tokens, FP8 8, INT8 7, INT4 14."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.frame_pool import FramePool
from pagefleet_engine.memory.moves import CopyFrame
from pagefleet_engine.memory.table import FrameTable, PrecisionRun
from pagefleet_engine.memory.writes import FrameWriter, Piece, plan_pieces
from pagefleet_engine.scheduling.testing import TinyLayout

BF16, FP8, INT4 = Precision.BF16, Precision.FP8_E4M3, Precision.INT4
SIZES = GroupSizes(TinyLayout())


class Writing:
    """One table that is written to."""

    def __init__(self, num_frames=300):
        self.pool = FramePool(num_frames)
        self.writer = FrameWriter(self.pool, SIZES)
        self.table = FrameTable()

    def write(self, num_new, precision):
        pieces = plan_pieces(self.table, num_new, SIZES, precision)
        needed, free = self.writer.frames_needed(self.table, pieces), self.pool.num_free
        copies = self.writer.write(self.table, pieces)
        assert free - self.pool.num_free == needed
        self.writer.commit(self.table)
        self.pool.settle()
        return copies

    def groups(self):
        return [(group.start, group.length, group.precision) for group in self.table.sealed]


def test_new_tokens_are_cut_at_group_borders():
    writing = Writing()
    writing.write(5, FP8)
    assert plan_pieces(writing.table, 20, SIZES, FP8) == [
        Piece(0, 8, FP8, 5, 3),
        Piece(8, 8, FP8, 0, 8),
        Piece(16, 8, FP8, 0, 8),
        Piece(24, 8, FP8, 0, 1),
    ]


def test_a_group_keeps_the_precision_in_which_it_was_begun():
    writing = Writing()
    writing.write(2, FP8)
    writing.write(10, BF16)
    assert writing.groups() == [(0, 8, FP8), (8, 4, BF16)]
    assert writing.table.runs == [PrecisionRun(0, FP8), PrecisionRun(8, BF16)]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.sampled_from(Precision))
def test_the_table_does_not_depend_on_how_the_tokens_came(chunks, precision):
    piecemeal, at_once = Writing(), Writing()
    for chunk in chunks:
        piecemeal.write(chunk, precision)
        assert piecemeal.pool.num_held == SIZES.frames(piecemeal.table.num_tokens, precision)
    at_once.write(sum(chunks), precision)
    assert piecemeal.groups() == at_once.groups()
    assert piecemeal.table.num_tokens == at_once.table.num_tokens == sum(chunks)


@given(st.lists(st.tuples(st.integers(1, 20), st.sampled_from(Precision)), min_size=1, max_size=12))
def test_a_table_that_is_written_again_has_the_same_groups(chunks):
    writing = Writing()
    for chunk, precision in chunks:
        writing.write(chunk, precision)
    groups, total = writing.groups(), writing.table.num_tokens
    for frame in list(writing.table.held_frames()):
        assert writing.pool.drop(frame)
        writing.pool.free(frame)
    writing.table.clear()
    writing.write(total, INT4)
    assert writing.groups() == groups


@given(st.integers(1, 60), st.integers(0, 20), st.integers(0, 8), st.sampled_from(Precision))
def test_the_longest_fit_fits_and_one_more_does_not(num_new, num_before, num_free, precision):
    writing = Writing(num_frames=30)
    if num_before:
        writing.write(num_before, precision)
    while writing.pool.num_free > num_free:
        writing.pool.take()
    pieces = plan_pieces(writing.table, num_new, SIZES, precision)
    fit = writing.writer.longest_fit(writing.table, pieces)
    free = writing.pool.num_free

    def needed(length):
        return writing.writer.frames_needed(writing.table, plan_pieces(writing.table, length, SIZES, precision))

    assert fit == 0 or needed(fit) <= free
    assert fit == num_new or needed(fit + 1) > free


def test_writing_into_a_shared_frame_copies_it_first():
    writing = Writing()
    writing.write(6, FP8)
    for frame in (0, 1):
        writing.pool.hold(frame)
    assert writing.write(1, FP8) == [CopyFrame(1, 2)]
    assert writing.table.open.frames == [0, 2]
    # The seal writes into the first frame, which is still shared.
    assert writing.write(1, FP8) == [CopyFrame(0, 3)]
    assert writing.table.sealed[0].frame == 3
    assert [writing.pool.holders(frame) for frame in range(4)] == [1, 1, 0, 1]


REPLAYS = {
    "in the middle": ((8, 16), [(0, BF16), (8, FP8), (16, BF16)]),
    "at the start": ((0, 8), [(0, FP8), (8, BF16)]),
    "at the end": ((16, 24), [(0, BF16), (16, FP8)]),
    "all of it": ((0, 24), [(0, FP8)]),
}


@pytest.mark.parametrize(("part", "expected"), REPLAYS.values(), ids=REPLAYS.keys())
def test_demoted_groups_are_remembered(part, expected):
    table = FrameTable(runs=[PrecisionRun(0, BF16)], begun_until=24)
    table.replay_demoted(*part, FP8)
    assert table.runs == [PrecisionRun(*run) for run in expected]
    assert table.is_mixed
