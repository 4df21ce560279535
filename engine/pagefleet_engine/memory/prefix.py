"""Prefix reuse for one request: which cached groups it can start with, and which of its own it offers.

A hit never covers the group of the last known token: that token has to be computed to give logits, and it sees its own
group unsealed. Nor does it cover prompt tokens whose own log probabilities are still wanted.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.memory.prefix_cache import CacheEntry, GroupIdentity, Namespace
from pagefleet_engine.memory.table import SealedGroup
from pagefleet_engine.memory.tiers import Tiers
from pagefleet_engine.request import Request


class PrefixReuse:
    """Walks the chain of a request's groups."""

    def __init__(self, tiers: Tiers, sizes: GroupSizes, *, model: str) -> None:
        self._tiers = tiers
        self._cache = tiers.cache
        self._sizes = sizes
        self._model = model

    def match(self, request: Request) -> tuple[CacheEntry, ...]:
        """Cached groups that a request without frames can start with, from position 0 on without a gap."""
        table, entries, start = request.table, list[CacheEntry](), 0
        while True:
            precision = table.precision_at(start, request.precision)
            end = start + self._sizes.lengths[precision]
            if end >= request.num_tokens or end > request.num_reusable:
                break
            parent = table.lookup_keys[len(entries) - 1] if entries else self._root(request)
            group = self._identity(request, parent, SealedGroup(0, start, end - start, precision))
            if len(table.lookup_keys) == len(entries):
                table.lookup_keys.append(self._cache.key(group))
            entry = self._cache.find(table.lookup_keys[len(entries)], group)
            if entry is None:
                break
            entries.append(entry)
            start = end
        return tuple(entries)

    def adopt(self, request: Request, hits: Sequence[CacheEntry]) -> None:
        """Hold the hits; those in host memory are copied back into the pool.

        None of them can be evicted while room is made for the others.
        """
        counters, in_host = self._tiers.counters, {}
        for entry in hits:
            if entry.frame is not None:
                self._tiers.hold(entry.frame)
            else:
                in_host[entry.key] = self._cache.leave_host(entry)
        self._tiers.make_free(len(in_host))
        start = 0
        for entry in hits:
            length = len(entry.group.token_ids)
            if entry.key in in_host:
                self._cache.enter_pool(entry, self._tiers.bring(in_host[entry.key], entry.group.precision))
                counters.prefix_host_hit_tokens += length
            else:
                counters.prefix_hit_tokens += length
            self._append(request, entry, start)
            start += length
        counters.prefix_query_tokens += request.num_reusable
        counters.prefetched += len(in_host)

    def publish(self, request: Request, sealed: Sequence[SealedGroup]) -> None:
        """Offer groups that have just been sealed. After a demotion the request offers nothing more."""
        table = request.table
        if len(table.keys) + len(sealed) != len(table.sealed):
            return
        for group in sealed:
            identity = self._identity(request, table.keys[-1] if table.keys else self._root(request), group)
            key = self._cache.key(identity)
            table.keys.append(key)
            self._tiers.offer(CacheEntry(key=key, group=identity, frame=group.frame))

    def publish_again(self, request: Request) -> None:
        """Offer what the cache forgot when the request was swapped out."""
        table = request.table
        parent = self._root(request)
        for group, key in zip(table.sealed, table.keys, strict=False):
            if self._cache.entry_of(group.frame) is None:
                identity = self._identity(request, parent, group)
                self._tiers.offer(CacheEntry(key=key, group=identity, frame=group.frame))
            parent = key

    def _append(self, request: Request, entry: CacheEntry, start: int) -> None:
        assert entry.frame is not None
        table, group = request.table, entry.group
        length = len(group.token_ids)
        table.begin_group(start, length, group.precision)
        table.sealed.append(SealedGroup(entry.frame, start, length, group.precision))
        table.keys.append(entry.key)
        table.num_sealed_tokens += length

    def _root(self, request: Request) -> bytes:
        return self._cache.root(self._namespace(request))

    def _namespace(self, request: Request) -> Namespace:
        return Namespace(self._model, request.adapter, request.cache_salt)

    def _identity(self, request: Request, parent: bytes, group: SealedGroup) -> GroupIdentity:
        token_ids = tuple(request.token_ids[group.start : group.start + group.length])
        return GroupIdentity(self._namespace(request), parent, group.precision, token_ids)
