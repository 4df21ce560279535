"""Whether the counts in a GGUF header can be true: nothing is read by a count before the file is seen to hold as much.

The `gguf` package believes every count: an array of 2^62 elements in a file of a hundred bytes keeps it busy for ever.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Final

from pagefleet_engine.errors import StartupError

_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type; strings (8) and arrays (9) have a length of their own."""
_STRING, _ARRAY = 8, 9


def check_counts(path: Path) -> None:
    """Walk over the metadata. Raises `StartupError` when a length exceeds what is left of the file.

    Versions and byte orders that are foreign are the reader's to refuse.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        walk = _Walk(path, data)
        walk.skip(4 + 4 + 8, "the header")
        for _ in range(walk.count("the header")):
            walk.entry()


class _Walk:
    """A position in the file that only moves over bytes that are there."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._at = 0

    def entry(self) -> None:
        """One key with its value."""
        begin = self._at + 8
        self.skip(self.count("a metadata key"), "a metadata key")
        name = f"metadata {self._data[begin : self._at][:80]!r}"
        self._value(self._kind(name), name)

    def count(self, what: str) -> int:
        self.skip(8, what)
        return int(struct.unpack_from("<Q", self._data, self._at - 8)[0])

    def skip(self, num_bytes: int, what: str) -> None:
        if num_bytes > len(self._data) - self._at:
            left = len(self._data) - self._at
            raise self._damaged(f"{what} takes {num_bytes} bytes of the {left} that are left")
        self._at += num_bytes

    def _value(self, kind: int, name: str) -> None:
        if kind == _STRING:
            self.skip(self.count(name), name)
        elif kind == _ARRAY:
            self._array(self._kind(name), self.count(name), name)
        else:
            self.skip(self._size(kind, name), name)

    def _array(self, kind: int, num: int, name: str) -> None:
        if kind == _ARRAY:
            raise self._damaged(f"{name} is an array of arrays")
        if kind != _STRING:
            self.skip(num * self._size(kind, name), name)
            return
        if num * 8 > len(self._data) - self._at:
            raise self._damaged(f"{name} has {num} strings in {len(self._data) - self._at} bytes")
        for _ in range(num):
            self.skip(self.count(name), name)

    def _kind(self, name: str) -> int:
        self.skip(4, name)
        return int(struct.unpack_from("<I", self._data, self._at - 4)[0])

    def _size(self, kind: int, name: str) -> int:
        if kind not in _SIZES:
            raise self._damaged(f"{name} is of the unknown type {kind}")
        return _SIZES[kind]

    def _damaged(self, why: str) -> StartupError:
        return StartupError(f"{self._path}: truncated or damaged GGUF file ({why}); download it again")
