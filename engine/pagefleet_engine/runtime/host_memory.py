"""Host memory for swapped frames: as large as it was asked for, zeroed, and taken from the system as it is written."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import torch
from torch import Tensor

HostMemory = Callable[[int], Tensor]
"""Number of bytes -> as many zeroed bytes, `uint8 [n]`, in host memory."""


class _Block(mmap.mmap):
    """Anonymous memory that lives as long as any tensor on it, views included."""

    unlock: Callable[[], object] | None = None

    def __del__(self) -> None:
        if self.unlock is not None:  # while the memory is still there
            self.unlock()


def pageable(num_bytes: int) -> Tensor:
    """Ordinary host memory. The system gives a page when it is first written, so unused swap space costs nothing."""
    return locked(num_bytes, lambda address: None)


def locked(num_bytes: int, lock: Callable[[int], Callable[[], object] | None]) -> Tensor:
    """Memory whose address `lock` is given; what that returns is called before the memory goes back to the system."""
    if num_bytes == 0:
        return torch.zeros(0, dtype=torch.uint8)
    block = _Block(-1, num_bytes)
    tensor = torch.frombuffer(block, dtype=torch.uint8)
    block.unlock = lock(tensor.data_ptr())
    return tensor
