import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.prefix_cache import (
    CacheEntry,
    GroupIdentity,
    Namespace,
    PrefixCache,
    keyed_digest,
)

BF16, FP8 = Precision.BF16, Precision.FP8_E4M3
OURS = Namespace("model", "", "")


def make_cache():
    return PrefixCache(keyed_digest(b"secret"))


def put(cache, frame, tokens, parent=None, precision=BF16, namespace=OURS):
    group = GroupIdentity(namespace, parent or cache.root(namespace), precision, tuple(tokens))
    entry = CacheEntry(key=cache.key(group), group=group, frame=frame)
    cache.insert(entry)
    return entry


OTHERS = {
    "other tokens": {"token_ids": (1, 2, 3, 5)},
    "another precision": {"precision": FP8},
    "another group before": {"parent": b"x" * 16},
    "another model": {"namespace": Namespace("other", "", "")},
    "another adapter": {"namespace": Namespace("model", "lora", "")},
    "another salt": {"namespace": Namespace("model", "", "tenant")},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS.keys())
def test_cve_2025_25183_a_hit_needs_more_than_the_key(changes):
    cache = make_cache()
    entry = put(cache, 0, [1, 2, 3, 4])
    assert cache.find(entry.key, entry.group) is entry
    assert cache.find(entry.key, entry.group._replace(**changes)) is None


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS.keys())
def test_keys_differ_with(changes):
    cache = make_cache()
    group = GroupIdentity(OURS, cache.root(OURS), BF16, (1, 2, 3, 4))
    other = group._replace(**changes)
    if "namespace" in changes:
        other = other._replace(parent=cache.root(changes["namespace"]))
    assert cache.key(group) != cache.key(other)


def test_names_that_run_together_make_different_roots():
    cache = make_cache()
    assert cache.root(Namespace("a", "bc", "")) != cache.root(Namespace("ab", "c", ""))
    assert cache.root(Namespace("a", "", "b")) != cache.root(Namespace("a", "b", ""))


def test_cve_2025_25183_keys_depend_on_the_secret():
    group = GroupIdentity(OURS, b"", BF16, (1, 2))
    assert PrefixCache(keyed_digest(b"a")).key(group) != PrefixCache(keyed_digest(b"b")).key(group)


def test_a_key_that_is_taken_by_other_tokens_keeps_the_first():
    cache = PrefixCache(lambda data: b"the same for everything")
    first = put(cache, 0, [1, 2, 3, 4])
    second = put(cache, 1, [5, 6, 7, 8])
    assert first.key == second.key
    assert cache.find(first.key, first.group) is first
    assert cache.find(second.key, second.group) is None
    assert cache.entry_of(1) is None


def test_the_second_frame_with_the_same_group_is_not_cached():
    cache = make_cache()
    put(cache, 0, [1, 2, 3, 4])
    put(cache, 1, [1, 2, 3, 4])
    assert cache.make_idle(0)
    assert not cache.make_idle(1)


def test_frames_are_evicted_in_the_order_in_which_they_became_idle():
    cache = make_cache()
    entries = [put(cache, frame, [frame] * 4) for frame in range(4)]
    for frame in (2, 0, 3, 1):
        assert cache.make_idle(frame)
    cache.make_held(0)
    cache.make_held(2)
    cache.make_idle(2)
    order = []
    while (entry := cache.oldest_idle()) is not None:
        order.append(entries.index(entry))
        cache.remove(entry)
    assert order == [3, 1, 2]
    assert cache.entry_of(0) is entries[0]


def test_an_entry_moves_to_host_memory_and_back():
    cache = make_cache()
    entry = put(cache, 3, [1, 2, 3, 4])
    cache.make_idle(3)
    cache.move_to_host(entry, 7)
    assert (entry.frame, entry.slot, cache.num_idle, cache.num_in_host) == (None, 7, 0, 1)
    assert cache.find(entry.key, entry.group) is entry
    assert cache.leave_host(entry) == 7
    cache.enter_pool(entry, 5)
    assert (entry.frame, entry.slot, cache.num_in_host) == (5, None, 0)
    assert cache.entry_of(3) is None
    assert cache.make_idle(5)


def test_a_group_sealed_again_takes_the_place_of_its_copy_in_host_memory():
    cache = make_cache()
    old = put(cache, 3, [1, 2, 3, 4])
    cache.make_idle(3)
    cache.move_to_host(old, 7)
    new = CacheEntry(key=old.key, group=old.group, frame=4)
    assert cache.insert(new) == 7
    assert cache.find(new.key, new.group) is new
    assert cache.num_in_host == 0
