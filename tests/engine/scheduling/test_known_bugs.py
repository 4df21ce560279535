"""Faults that other engines had in their KV memory, each as a test of ours. The number names the report of it."""

import itertools

import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import FinishReason, RequestState
from pagefleet_engine.scheduling.testing import Harness

ALL = list(Precision)


def rest(harness):
    """Nothing runs: what nobody needs is free, and nothing is counted twice."""
    stats = harness.scheduler.stats()
    harness.scheduler.check_invariants()
    assert (stats.usage, stats.host_usage) == (0.0, 0.0)
    assert (stats.running, stats.waiting, stats.swapped, stats.parked) == (0, 0, 0, 0)
    assert sum(stats.frames.values()) == harness.config.num_frames


def under_pressure(**changes):
    """b is about to leave for a."""
    harness = Harness(**({"num_host_frames": 8} | changes))
    first = harness.add("a", range(18), max_tokens=9)
    harness.step()
    second = harness.add("b", range(100, 115), max_tokens=12)
    return harness, first, second


@pytest.mark.parametrize("precision", ALL)
def test_many_turns_of_a_conversation_hit_the_cache_and_answer_as_if_alone(precision):  # vLLM#38652
    harness = Harness(enable_prefix_caching=True, num_frames=60)
    tokens, cached = list(range(5)), []
    for turn in range(6):
        request = harness.add(f"turn {turn}", [*tokens, 900 + turn], max_tokens=9, precision=precision)
        harness.run()
        assert harness.is_solo(request)
        cached.append(request.num_cached_prompt_tokens)
        tokens = request.token_ids
    assert cached == sorted(cached)
    assert cached[-1] > cached[1]


@pytest.mark.parametrize("num_host_frames", [0, 4, 40])
def test_requests_do_not_preempt_each_other_for_ever(num_host_frames):  # vLLM#25538
    harness = Harness(num_host_frames=num_host_frames)
    requests = [harness.add(name, range(100 * i, 100 * i + 10), max_tokens=30) for i, name in enumerate("abcd")]
    harness.run()
    assert harness.scheduler.stats().counters.preemptions <= 6
    assert all(harness.is_solo(request) for request in requests)


def test_an_answer_is_complete_after_a_recompute():  # vLLM#16832
    harness, first, second = under_pressure(num_host_frames=0)
    harness.run()
    assert harness.scheduler.stats().counters.recomputes == 1
    assert (first.num_output_tokens, second.num_output_tokens) == (9, 12)
    assert harness.is_solo(second)


def test_the_engine_goes_on_after_host_memory_was_used():  # vLLM#546
    harness, _, second = under_pressure()
    harness.run()
    assert harness.scheduler.stats().counters.resumes == 1
    later = harness.add("c", range(200, 230), max_tokens=8)
    harness.run()
    assert harness.is_solo(second)
    assert harness.is_solo(later)
    rest(harness)


@pytest.mark.parametrize("num_host_frames", range(5))
def test_too_little_host_memory_means_recompute_and_no_error(num_host_frames):  # vLLM#588, #12
    harness, first, second = under_pressure(num_host_frames=num_host_frames)
    harness.run()
    assert (harness.reasons["a"], harness.reasons["b"]) == (FinishReason.LENGTH, FinishReason.LENGTH)
    assert harness.is_solo(first)
    assert harness.is_solo(second)
    rest(harness)


@pytest.mark.parametrize("precision", ALL)
def test_choices_with_a_prompt_in_chunks_do_not_fill_host_memory(precision):  # vLLM#5578
    harness = Harness(num_frames=14, num_host_frames=40, max_num_batched_tokens=5, max_num_seqs=6)
    for group in "ab":
        harness.add(group, range(ord(group), ord(group) + 23), max_tokens=12, seed=0, precision=precision)
        for choice in (1, 2):
            harness.add(
                f"{group}{choice}",
                range(ord(group), ord(group) + 23),
                max_tokens=12,
                seed=choice,
                precision=precision,
                fork_of=group,
            )
    usage = []
    for _ in range(300):
        harness.step()
        usage.append(harness.scheduler.stats().host_usage)
    # Three choices share 23 tokens of prompt, so even all six of them own fewer frames than the pool has.
    assert max(usage) <= 14 / 40
    rest(harness)


def test_a_request_is_not_admitted_again_while_its_frames_are_leaving():  # vLLM#46014
    harness, first, second = under_pressure()
    harness.until(lambda: first.num_tokens == 25)
    output = harness.scheduler.schedule()
    assert second.state is RequestState.SWAPPED
    assert len(output.swap_out) == 4
    assert output.swap_in == ()
    harness.scheduler.abort("a")
    harness.scheduler.update(output, harness.model.execute(output))
    # Now that a has gone, b comes back in the next step, from slots that have been written.
    assert [move.slot for move in harness.step().swap_in] == [move.slot for move in output.swap_out]
    harness.run()
    assert harness.is_solo(second)


def test_a_host_slot_is_not_written_while_it_is_read():  # vLLM#31341, #29870; SGLang#38031, #27504, #22811, #26728
    harness = Harness(enable_prefix_caching=True, num_host_frames=5, num_frames=10)
    prompts = [range(100 * i, 100 * i + 21) for i in range(4)]
    steps = []
    for turn in range(12):
        request = harness.add(f"r{turn}", prompts[turn % 2 if turn % 3 else turn % 4], max_tokens=1)
        while harness.scheduler.has_work:
            steps.append(harness.step())
        assert harness.is_solo(request)
    both = [step for step in steps if step.swap_in and step.swap_out]
    assert both
    for step in both:
        assert not {move.slot for move in step.swap_in} & {move.slot for move in step.swap_out}


def test_an_abort_while_prefix_frames_arrive_leaks_nothing():  # vLLM#46283, #46289, #44100
    harness = Harness(enable_prefix_caching=True, num_host_frames=8)
    harness.add("old", range(20), max_tokens=1)
    harness.run()
    harness.add("big", range(100, 138), max_tokens=1)
    harness.run()
    harness.add("a", range(21))
    output = harness.scheduler.schedule()
    assert output.swap_in
    harness.scheduler.abort("a")
    harness.scheduler.check_invariants()
    harness.scheduler.update(output, harness.model.execute(output))
    rest(harness)


@pytest.mark.parametrize("steps_after", range(4))
def test_an_abort_of_a_swapped_or_resuming_request_leaks_nothing(steps_after):
    harness, _, second = under_pressure()
    harness.until(lambda: second.state is RequestState.SWAPPED)
    for _ in range(steps_after):
        harness.step()
    harness.scheduler.abort("b")
    harness.run()
    rest(harness)


def test_a_client_that_leaves_in_the_middle_of_its_prompt_frees_its_frames():  # vLLM#50425
    harness = Harness(max_num_batched_tokens=6)
    harness.add("a", range(30))
    harness.step()
    harness.step()
    assert harness.scheduler.stats().usage == 0.3
    harness.scheduler.abort("a")
    rest(harness)


def test_an_abort_before_the_first_step_is_allowed():  # vLLM#18485
    harness = Harness()
    harness.add("a", range(5))
    harness.scheduler.abort("a")
    rest(harness)
    assert harness.step().is_empty


def test_an_abort_between_lookup_and_admission_leaks_nothing():  # SGLang#12693
    harness = Harness(enable_prefix_caching=True)
    harness.add("old", range(20), max_tokens=1)
    harness.run()
    request = harness.add("a", range(21))
    assert len(harness.scheduler.memory.plan_admission(request).hits) == 5
    harness.scheduler.abort("a")
    rest(harness)


def test_cached_frames_that_nobody_holds_are_counted_once():  # SGLang#35270
    harness = Harness(enable_prefix_caching=True)
    harness.add("a", range(20), max_tokens=1)
    harness.add("b", range(20), max_tokens=1)
    harness.run()
    rest(harness)
    # Both sealed five groups in the same step; the second five were not cached.
    assert harness.scheduler.stats().sealed_frames[Precision.BF16] == 5
    assert harness.scheduler.memory.num_available == 10


def test_the_cap_at_its_lowest_keeps_no_frames_of_requests_that_have_ended():  # SGLang#6778, #33783
    harness = Harness(num_host_frames=8)
    for i, name in enumerate("abcd"):
        harness.add(name, range(100 * i, 100 * i + 5), max_tokens=6)
    harness.step()
    harness.scheduler.set_cap(1)
    harness.run()
    rest(harness)


def test_a_result_that_comes_after_the_abort_is_dropped():  # LMCache#4185
    harness = Harness()
    harness.add("a", range(5))
    harness.add("b", range(50, 55))
    output = harness.scheduler.schedule()
    harness.scheduler.abort("a")
    updates = harness.scheduler.update(output, harness.model.execute(output), failed={"a"})
    assert [update.request_id for update in updates] == ["b"]
    harness.run()
    rest(harness)


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
def test_shared_and_copied_frames_are_freed_once_in_whatever_order_forks_end(order):  # vLLM#1584, #1556, #3347
    for copied in (False, True):
        harness = Harness(num_frames=20, enable_prefix_caching=copied)
        harness.add("a", range(10), max_tokens=20, seed=0)
        harness.step()
        for seed, name in enumerate("bc", start=1):
            harness.add(name, range(10), max_tokens=20, seed=seed, fork_of="a")
        if copied:
            assert harness.step().copy
        for name in order:
            harness.scheduler.abort(name)
            harness.scheduler.check_invariants()
        rest(harness)


def test_ending_twice_frees_once():  # sglang-jax#994
    harness = Harness()
    harness.add("a", range(5), max_tokens=1)
    harness.add("b", range(50, 55), max_tokens=4)
    output = harness.scheduler.schedule()
    harness.scheduler.abort("a")
    harness.scheduler.abort("a")
    harness.scheduler.fail("a")
    harness.scheduler.update(output, harness.model.execute(output))
    harness.scheduler.abort("a")
    harness.run()
    harness.scheduler.abort("b")
    rest(harness)


def test_host_memory_never_gives_back_another_conversation():  # llama.cpp#27148
    harness = Harness(enable_prefix_caching=True, num_host_frames=6)
    # Conversations that begin alike, differ in one token, and end alike.
    prompts = [[*range(8), 70 + i, *range(9, 21)] for i in range(5)]
    for turn in range(25):
        request = harness.add(f"r{turn}", prompts[(turn * 3) % 5], max_tokens=2)
        harness.run()
        assert harness.is_solo(request)
    assert harness.scheduler.stats().memory.prefix_host_hit_tokens > 0


def test_the_same_tokens_at_another_position_are_no_hit():  # llama.cpp#12161
    harness = Harness(enable_prefix_caching=True)
    block = list(range(4))
    harness.add("a", [*block, *block, *block], max_tokens=1)
    harness.run()
    moved = harness.add("b", [*[50] * 4, *block, *block, 1], max_tokens=1)
    harness.step()
    assert moved.num_cached_prompt_tokens == 0
    harness.run()
    assert harness.is_solo(moved)


def test_a_client_that_leaves_does_not_spoil_what_others_share():  # llama.cpp#29163, #25566
    harness = Harness(enable_prefix_caching=True, max_num_batched_tokens=8)
    harness.add("a", range(21))
    harness.step()
    second = harness.add("b", range(21), max_tokens=3)
    output = harness.scheduler.schedule()
    harness.scheduler.abort("a")
    harness.scheduler.update(output, harness.model.execute(output))
    harness.run()
    assert harness.is_solo(second)
    third = harness.add("c", range(21), max_tokens=3)
    harness.run()
    assert third.num_cached_prompt_tokens == 20
    assert third.token_ids == second.token_ids
    rest(harness)


@pytest.mark.parametrize("precision", ALL)
def test_choices_do_not_write_over_each_other_and_differ_by_their_seed(precision):  # vLLM#16863, #14280, #12584, #11898
    harness = Harness(num_frames=40, max_num_seqs=8)
    first = harness.add("a", range(11), max_tokens=20, seed=0, precision=precision)
    choices = [
        harness.add(f"a{i}", range(11), max_tokens=20, seed=i, precision=precision, fork_of="a") for i in range(1, 5)
    ]
    harness.run()
    assert all(harness.is_solo(request) for request in (first, *choices))
    assert len({tuple(request.token_ids) for request in (first, *choices)}) == 5


def test_low_priority_is_served_although_better_ones_never_stop_coming():
    harness = Harness(max_num_seqs=1, aging_steps=20)
    low = harness.add("low", range(4), max_tokens=2, priority=1)
    for number in range(60):
        harness.add(f"high {number}", range(4), max_tokens=2, priority=0)
        harness.step()
        if low.state is RequestState.FINISHED:
            break
    assert low.state is RequestState.FINISHED
