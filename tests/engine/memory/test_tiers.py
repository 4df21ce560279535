import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.frame_pool import FrameError, FramePool, FrameState
from pagefleet_engine.memory.host_pool import HostPool
from pagefleet_engine.memory.prefix_cache import CacheEntry, GroupIdentity, Namespace, PrefixCache, keyed_digest
from pagefleet_engine.memory.tiers import Tiers

BF16 = Precision.BF16
OURS = Namespace("model", "", "")


def cached(tiers, number):
    """A sealed frame that nobody holds."""
    frame = tiers.pool.take()
    tiers.pool.seal(frame, BF16)
    group = GroupIdentity(OURS, tiers.cache.root(OURS), BF16, (number,) * 4)
    tiers.offer(CacheEntry(key=tiers.cache.key(group), group=group, frame=frame))
    tiers.drop(frame)
    return frame


def make_tiers(num_frames=4, num_slots=2):
    return Tiers(FramePool(num_frames), HostPool(num_slots), PrefixCache(keyed_digest(b"")))


def test_a_cached_frame_stays_sealed_when_its_last_holder_goes():
    tiers = make_tiers()
    frame = cached(tiers, 1)
    assert tiers.pool.state(frame) is FrameState.SEALED
    assert (tiers.num_available, tiers.pool.num_free) == (4, 3)
    tiers.check_invariants([])


def test_a_slot_that_is_given_up_in_the_step_that_fills_it_is_not_written():
    tiers = make_tiers(num_frames=2)
    frames = [cached(tiers, number) for number in range(2)]
    assert tiers.make_free(2)
    assert tiers.moves.swap_out == {0: frames[0], 1: frames[1]}
    assert tiers.take_slots(1) == [0]
    assert tiers.moves.swap_out == {1: frames[1]}
    tiers.host.free(0)
    tiers.check_invariants([])


def test_make_free_says_when_it_is_not_enough():
    tiers = make_tiers(num_slots=0)
    cached(tiers, 1)
    tiers.pool.take()
    assert not tiers.make_free(4)
    assert tiers.pool.num_free == 3
    assert tiers.moves.swap_out == {}


def test_more_slots_than_can_be_had_are_refused():
    with pytest.raises(FrameError, match="no cached host slot is left to drop"):
        make_tiers().take_slots(3)


def test_a_sealed_frame_that_nobody_knows_is_found():
    tiers = make_tiers()
    frame = cached(tiers, 1)
    entry = tiers.cache.entry_of(frame)
    tiers.cache.remove(entry)
    with pytest.raises(FrameError, match=f"frame {frame} is sealed, held by 0"):
        tiers.check_invariants([])
