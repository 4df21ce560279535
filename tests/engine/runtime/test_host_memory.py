"""Where swapped frames lie: zeroed, and taken from the system only as far as it is written."""

import ctypes

import pytest
import torch

from pagefleet_engine.runtime.host_memory import locked, pageable


def resident_pages():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 10_000])
def test_it_is_zeroed_and_can_be_written(num_bytes):
    memory = pageable(num_bytes)
    assert (memory.shape, memory.dtype) == ((num_bytes,), torch.uint8)
    assert memory.sum() == 0
    memory.fill_(7)
    assert memory.sum() == 7 * num_bytes


def test_what_is_not_written_is_not_taken():
    before = resident_pages()
    memory = pageable(2**30)
    memory[2**29] = 1
    assert resident_pages() - before < 10_000  # of the 262,144 pages; a huge page may come at once
    assert memory[2**29 - 1 : 2**29 + 2].tolist() == [0, 1, 0]


@pytest.mark.parametrize("is_inference", [False, True])
def test_it_stays_locked_while_any_tensor_is_on_it(is_inference):
    seen = []
    with torch.inference_mode(is_inference):
        frames = locked(8, lambda address: lambda: seen.append(ctypes.string_at(address, 8))).view(2, 4)
        frames.fill_(7)
        assert seen == []
        row = frames[1]
        del frames
        assert seen == []
        del row
    assert seen == [b"\7" * 8]  # unlocked once, with the memory still there


def test_what_cannot_be_locked_is_not_unlocked():
    def refuse(address):
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        locked(8, refuse)
