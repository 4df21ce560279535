from collections import Counter

import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.frame_pool import FrameError, FramePool, FrameState

BF16, FP8 = Precision.BF16, Precision.FP8_E4M3


def taken(pool, count):
    return [pool.take() for _ in range(count)]


def give_back(pool, frame):
    assert pool.drop(frame)
    pool.free(frame)


def test_a_new_pool_hands_out_its_frames_in_order():
    assert taken(FramePool(10), 10) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_the_frame_freed_last_is_taken_first():
    pool = FramePool(10)
    taken(pool, 4)
    for frame in (2, 0, 3):
        give_back(pool, frame)
    # 3, 0, 2 were freed in the reverse order; 4 has never been used.
    assert taken(pool, 4) == [3, 0, 2, 4]


def test_a_pool_counts_frames_by_state_and_their_sum_is_the_pool():
    pool = FramePool(10)
    taken(pool, 5)
    pool.seal(0, BF16)
    pool.seal(1, BF16)
    pool.drop(4)
    pool.seal(4, FP8)
    pool.depart(4)
    assert pool.counts() == {
        FrameState.FREE: 5,
        FrameState.OPEN: 2,
        FrameState.SEALED: 2,
        FrameState.IN_TRANSFER: 1,
    }
    assert (pool.sealed[BF16], pool.sealed[FP8]) == (2, 0)
    pool.check_invariants(Counter([0, 1, 2, 3]))


def test_usage_counts_held_frames_only():
    pool = FramePool(10)
    taken(pool, 3)
    pool.hold(0)
    pool.seal(1, BF16)
    pool.drop(1)
    assert pool.num_held == 2
    pool.drop(0)
    assert pool.num_held == 2
    pool.drop(0)
    assert pool.num_held == 1


def test_a_departing_frame_is_taken_only_when_nothing_is_free():
    pool = FramePool(3)
    taken(pool, 2)
    pool.drop(0)
    pool.depart(0)
    assert pool.num_free == 2
    assert taken(pool, 2) == [2, 0]
    pool.settle()
    assert pool.state(0) is FrameState.OPEN
    pool.check_invariants(Counter([0, 1, 2]))


def test_a_departed_frame_is_free_after_the_step():
    pool = FramePool(3)
    taken(pool, 2)
    pool.drop(0)
    pool.depart(0)
    assert pool.state(0) is FrameState.IN_TRANSFER
    pool.settle()
    assert pool.state(0) is FrameState.FREE
    assert pool.take() == 0


@pytest.mark.parametrize(("becomes", "state"), [(None, FrameState.OPEN), (FP8, FrameState.SEALED)])
def test_an_arriving_frame_is_in_transfer_until_the_step_has_ended(becomes, state):
    pool = FramePool(3)
    frame = pool.take_arriving(becomes)
    assert pool.state(frame) is FrameState.IN_TRANSFER
    pool.check_invariants(Counter([frame]))
    pool.settle()
    assert pool.state(frame) is state
    pool.check_invariants(Counter([frame]))


def test_the_source_of_a_copy_is_given_to_nobody_before_the_step_has_ended():
    pool = FramePool(2)
    taken(pool, 2)
    pool.read_by_copy(0)
    give_back(pool, 0)
    assert (pool.num_free, pool.state(0)) == (0, FrameState.IN_TRANSFER)
    pool.check_invariants(Counter([1]))
    pool.settle()
    assert pool.take() == 0


WRONG_USES = {
    "a frame is freed twice": lambda pool: (give_back(pool, 0), pool.free(0)),
    "a frame is freed while another request holds it": lambda pool: (pool.hold(0), pool.drop(0), pool.free(0)),
    "a frame is dropped twice": lambda pool: (pool.drop(0), pool.drop(0)),
    "a free frame is held": lambda pool: pool.hold(1),
    "a sealed frame is sealed": lambda pool: (pool.seal(0, BF16), pool.seal(0, BF16)),
    "an arriving frame is sealed": lambda pool: pool.seal(pool.take_arriving(BF16), BF16),
    "more frames are taken than there are": lambda pool: taken(pool, 2),
    "an open frame is demoted": lambda pool: pool.demote(0, FP8),
    "a shared frame is demoted": lambda pool: (pool.seal(0, BF16), pool.hold(0), pool.demote(0, FP8)),
    "a departing frame is freed": lambda pool: (pool.drop(0), pool.depart(0), pool.free(0)),
    "the source of a copy departs": lambda pool: (pool.read_by_copy(0), pool.drop(0), pool.depart(0)),
}


@pytest.mark.parametrize("use", WRONG_USES.values(), ids=WRONG_USES.keys())
def test_the_pool_refuses_when(use):
    pool = FramePool(2)
    pool.take()
    with pytest.raises(FrameError):
        use(pool)


def test_invariants_name_a_frame_whose_holders_are_not_known():
    pool = FramePool(2)
    pool.take()
    with pytest.raises(FrameError, match="frame 0 counts 1 holders, but 0 hold it"):
        pool.check_invariants(Counter())


def test_a_pool_without_frames_is_refused():
    with pytest.raises(ValueError, match="at least one frame, not 0"):
        FramePool(0)
