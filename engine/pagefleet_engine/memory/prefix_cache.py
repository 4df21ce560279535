"""Which sealed groups can be shared, by a chain of keyed hashes.

    key(group) = H(key of the group before, precision, token ids)        key(nothing) = H(model, adapter, salt)

So a key stands for everything that the KV of a group depends on. Hashes only find candidates: on every hit the
namespace, the key of the group before, the precision and the token ids are compared. An entry is in the pool
(`frame`) or in host memory (`slot`). Entries that nobody holds are evicted least recently used first, and of those
released together the one furthest from the root first.

The cache neither counts holders nor moves anything; `memory.tiers` does.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from pagefleet_engine.contract.precision import Precision

KEY_BYTES = 16

Digest = Callable[[bytes], bytes]


def keyed_digest(cache_key: bytes) -> Digest:
    """BLAKE2b with a secret key: without it nobody can construct two prompts with one hash."""
    return lambda data: blake2b(data, digest_size=KEY_BYTES, key=cache_key).digest()


class Namespace(NamedTuple):
    """What requests must have in common to share anything."""

    model: str
    adapter: str
    salt: str


class GroupIdentity(NamedTuple):
    """What is compared on a hit."""

    namespace: Namespace
    parent: bytes
    """Key of the group before."""
    precision: Precision
    token_ids: tuple[int, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class CacheEntry:
    """One shareable group."""

    key: bytes
    group: GroupIdentity
    frame: int | None
    """Its frame in the pool, or None while it is in host memory."""
    slot: int | None = None
    """Its host slot, when it has no frame."""


class PrefixCache:
    """Entries by key and by frame, and the order in which unheld ones are evicted."""

    def __init__(self, digest: Digest) -> None:
        self._digest = digest
        self._entries: dict[bytes, CacheEntry] = {}
        self._by_frame: dict[int, CacheEntry] = {}
        # Both in the order of eviction, first first.
        self._idle: dict[int, CacheEntry] = {}
        self._in_host: dict[bytes, CacheEntry] = {}

    @property
    def num_idle(self) -> int:
        """Frames in the pool that only the cache keeps."""
        return len(self._idle)

    @property
    def num_in_host(self) -> int:
        return len(self._in_host)

    def root(self, namespace: Namespace) -> bytes:
        """Where the chains of this namespace start."""
        return self._digest(b"".join(len(part.encode()).to_bytes(8) + part.encode() for part in namespace))

    def key(self, group: GroupIdentity) -> bytes:
        """Key of a group."""
        return self._digest(
            b"".join((group.parent, group.precision.encode(), b":", array("q", group.token_ids).tobytes()))
        )

    def find(self, key: bytes, group: GroupIdentity) -> CacheEntry | None:
        """The entry of exactly this group, or None. Changes nothing."""
        entry = self._entries.get(key)
        return entry if entry is not None and entry.group == group else None

    def insert(self, entry: CacheEntry) -> int | None:
        """Offer a sealed frame that a request holds.

        It is refused when its key is taken by another frame. Where the group was in host memory only, the frame takes
        its place, and the slot that has become free is returned.
        """
        assert entry.frame is not None
        known = self._entries.get(entry.key)
        if known is not None and (known.frame is not None or known.group != entry.group):
            return None
        if known is not None:
            del self._in_host[known.key]
        self._entries[entry.key] = entry
        self._by_frame[entry.frame] = entry
        return known.slot if known is not None else None

    def entry_of(self, frame: int) -> CacheEntry | None:
        return self._by_frame.get(frame)

    def make_idle(self, frame: int) -> bool:
        """The frame's last holder has gone. False when the cache does not know it, so that it must be freed."""
        entry = self._by_frame.get(frame)
        if entry is None:
            return False
        self._idle[frame] = entry
        return True

    def make_held(self, frame: int) -> None:
        """A request holds the frame, perhaps the first to do so; it cannot be evicted now."""
        self._idle.pop(frame, None)

    def oldest_idle(self) -> CacheEntry | None:
        """Who is evicted from the pool next."""
        return next(iter(self._idle.values()), None)

    def oldest_in_host(self) -> CacheEntry | None:
        """Who is evicted from host memory next."""
        return next(iter(self._in_host.values()), None)

    def move_to_host(self, entry: CacheEntry, slot: int) -> None:
        """An idle entry's frame is copied to `slot` and given up."""
        self._leave_pool(entry)
        entry.frame, entry.slot = None, slot
        self._in_host[entry.key] = entry

    def leave_host(self, entry: CacheEntry) -> int:
        """An entry is about to be copied from host memory into the pool and cannot be evicted now. Returns its slot."""
        assert entry.slot is not None
        slot, entry.slot = entry.slot, None
        del self._in_host[entry.key]
        return slot

    def enter_pool(self, entry: CacheEntry, frame: int) -> None:
        """The entry that has left host memory is copied into `frame`, which a request holds."""
        entry.frame = frame
        self._by_frame[frame] = entry

    def remove(self, entry: CacheEntry) -> None:
        """Forget an entry, wherever it is; the caller frees what it occupied."""
        self._leave_pool(entry)
        self._in_host.pop(entry.key, None)
        del self._entries[entry.key]

    def entries(self) -> Iterator[CacheEntry]:
        return iter(self._entries.values())

    def is_idle(self, frame: int) -> bool:
        return frame in self._idle

    def _leave_pool(self, entry: CacheEntry) -> None:
        if entry.frame is not None:
            self._idle.pop(entry.frame, None)
            del self._by_frame[entry.frame]
