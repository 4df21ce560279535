"""Prefix hits as requests see them: pools of 10 frames, blocks of 4 tokens."""

import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.moves import SwapIn
from pagefleet_engine.scheduling.testing import Harness

BF16, FP8, INT4 = Precision.BF16, Precision.FP8_E4M3, Precision.INT4


def make_harness(**changes):
    return Harness(**({"enable_prefix_caching": True, "cache_key": b"test"} | changes))


def warmed(prompt, **changes):
    harness = make_harness()
    harness.add("warm", prompt, max_tokens=1, **changes)
    harness.run()
    return harness


# Prompt that is cached → prompt that arrives → tokens it need not compute. BF16 groups have 4 tokens.
HITS = {
    "nothing in common": (range(20), range(100, 120), 0),
    "the same prompt, but for the group of its last token": (range(20), range(20), 16),
    "one token more than whole groups": (range(20), range(21), 20),
    "a common beginning up to the group in which they differ": (range(20), [*range(10), 99, 99, 99, 99], 8),
    "a shorter prompt": (range(20), range(9), 8),
    "a prompt within the first group": (range(20), range(4), 0),
}


@pytest.mark.parametrize(("cached", "prompt", "expected"), HITS.values(), ids=HITS.keys())
def test_a_hit_covers(cached, prompt, expected):
    harness = warmed(cached)
    request = harness.add("a", prompt)
    output = harness.step()
    assert request.num_cached_prompt_tokens == expected
    assert output.requests[0].start == expected
    harness.run()
    assert harness.is_solo(request)


KEPT_APART = {
    "another precision": {"precision": FP8},
    "another salt": {"cache_salt": "tenant"},
    "another adapter": {"adapter": "lora"},
}


@pytest.mark.parametrize("changes", KEPT_APART.values(), ids=KEPT_APART.keys())
def test_there_is_no_hit_across(changes):
    harness = warmed(range(30))
    request = harness.add("a", range(30), **changes)
    harness.step()
    assert request.num_cached_prompt_tokens == 0
    same = harness.add("b", range(30), **changes)
    harness.run()
    assert same.num_cached_prompt_tokens > 0


@pytest.mark.parametrize("precision", list(Precision))
def test_every_precision_is_cached(precision):
    harness = warmed(range(30), precision=precision)
    request = harness.add("a", range(30), precision=precision)
    harness.step()
    length = harness.layout.tokens_per_frame(precision)
    assert request.num_cached_prompt_tokens == 29 // length * length
    harness.run()
    assert harness.is_solo(request)


def test_a_second_turn_hits_generated_tokens():
    harness = make_harness()
    first = harness.add("a", range(10), max_tokens=11)
    harness.run()
    second = harness.add("b", [*first.token_ids, 50, 51], max_tokens=4)
    harness.step()
    assert first.num_tokens == 21
    # The KV of a's last token was never computed.
    assert second.num_cached_prompt_tokens == 20
    harness.run()
    assert harness.is_solo(second)


def test_two_requests_of_one_step_do_not_share_what_is_being_written():
    harness = make_harness(num_frames=20)
    for name in "ab":
        harness.add(name, range(12))
    output = harness.step()
    assert [request.start for request in output.requests] == [0, 0]
    harness.add("c", range(12))
    assert harness.step().requests[-1].start == 8


def test_tokens_are_counted_per_tier():
    harness = warmed(range(20))
    harness.add("a", range(20), max_tokens=1)
    harness.run()
    memory = harness.scheduler.stats().memory
    assert (memory.prefix_query_tokens, memory.prefix_hit_tokens, memory.prefix_host_hit_tokens) == (40, 16, 0)


def test_evicted_prefixes_come_back_from_host_memory_before_the_request_computes():
    harness = make_harness(num_host_frames=8)
    harness.add("old", range(20), max_tokens=1)
    harness.run()
    harness.add("big", range(100, 138), max_tokens=2)
    harness.run()
    assert harness.scheduler.stats().memory.evicted_to_host == 5
    request = harness.add("a", range(21), max_tokens=3)
    output = harness.step()
    assert [move.slot for move in output.swap_in] == [4, 3, 2, 1, 0]
    assert all(isinstance(move, SwapIn) for move in output.swap_in)
    assert output.requests == ()
    assert request.num_cached_prompt_tokens == 20
    assert harness.step().requests[0].start == 20
    harness.run()
    assert harness.is_solo(request)
    memory = harness.scheduler.stats().memory
    assert (memory.prefetched, memory.prefix_host_hit_tokens) == (5, 20)


def test_a_warm_cache_is_no_use():
    harness = warmed(range(39))
    stats = harness.scheduler.stats()
    assert stats.usage == 0.0
    assert stats.sealed_frames[BF16] == 9


def test_the_tail_of_a_chain_is_evicted_first():
    harness = warmed(range(20))
    harness.add("big", range(100, 126), max_tokens=1)
    harness.run()
    # big took 7 frames of 10, so that two of the five groups had to go, and the first three stayed.
    request = harness.add("a", range(20), max_tokens=1)
    harness.step()
    assert request.num_cached_prompt_tokens == 12


def test_a_failed_request_leaves_nothing_to_share():
    harness = make_harness()
    harness.add("a", range(20))
    harness.step()
    harness.step(failed={"a"})
    request = harness.add("b", range(20))
    harness.step()
    assert request.num_cached_prompt_tokens == 0
    harness.run()


def test_a_change_of_precision_while_waiting_is_looked_up_anew():
    harness = warmed(range(20), precision=FP8)
    request = harness.add("a", range(20), precision=BF16)
    harness.scheduler.memory.plan_admission(request)
    harness.scheduler.set_precision("a", FP8)
    harness.step()
    assert request.num_cached_prompt_tokens == 16
    assert not request.mixed


def test_a_demoted_request_offers_nothing_more():
    harness = make_harness()
    first = harness.add("a", range(19), max_tokens=20, allow_demotion=True)
    harness.step()
    harness.add("b", range(100, 114), max_tokens=4)
    harness.until(lambda: first.table.demoted)
    harness.run()
    request = harness.add("c", [*first.token_ids, 1], max_tokens=1)
    harness.step()
    assert request.num_cached_prompt_tokens == 0


def test_what_follows_a_demoted_group_is_not_taken_for_the_beginning_of_a_prompt():
    harness = make_harness()
    first = harness.add("a", range(19), max_tokens=20, allow_demotion=True)
    harness.step()
    harness.add("b", range(100, 114), max_tokens=4)
    harness.until(lambda: first.table.demoted)
    harness.scheduler.abort("b")
    harness.run()
    for start in range(24, 36, 4):
        request = harness.add(f"at {start}", [*first.token_ids[start:], 1], max_tokens=1)
        harness.run()
        assert request.num_cached_prompt_tokens == 0
        assert harness.is_solo(request)
