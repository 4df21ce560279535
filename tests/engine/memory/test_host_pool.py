import pytest

from pagefleet_engine.memory.frame_pool import FrameError
from pagefleet_engine.memory.host_pool import HostPool


def test_slots_are_taken_last_in_first_out():
    host = HostPool(4)
    assert [host.take() for _ in range(3)] == [0, 1, 2]
    host.free(0)
    host.free(2)
    assert [host.take() for _ in range(3)] == [2, 0, 3]


def test_a_slot_that_is_being_read_is_free_after_the_step():
    host = HostPool(1)
    slot = host.take()
    host.free_after_step(slot)
    assert host.num_free == 0
    host.check_invariants([])
    host.settle()
    assert host.take() == slot


WRONG_USES = {
    "a slot is freed twice": lambda host: (host.free(0), host.free(0)),
    "a slot is freed while it is read": lambda host: (host.free_after_step(0), host.free(0)),
    "more slots are taken than there are": lambda host: host.take(),
}


@pytest.mark.parametrize("use", WRONG_USES.values(), ids=WRONG_USES.keys())
def test_host_memory_refuses_when(use):
    host = HostPool(1)
    host.take()
    with pytest.raises(FrameError):
        use(host)


def test_a_slot_with_two_owners_is_found():
    host = HostPool(2)
    host.take()
    host.check_invariants([0])
    with pytest.raises(FrameError, match="not each in one place"):
        host.check_invariants([0, 0])
