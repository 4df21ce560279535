"""What gives way, with exact frames and slots: pools of 10 frames, blocks of 4 tokens."""

import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.moves import Demote, SwapIn, SwapOut
from pagefleet_engine.memory.table import SealedGroup
from pagefleet_engine.request import RequestState
from pagefleet_engine.scheduling.testing import Harness

BF16, FP8, INT4 = Precision.BF16, Precision.FP8_E4M3, Precision.INT4


def filled(first=None, second=None, **changes):
    """Two BF16 requests that fill 9 frames of 10, so that the second one soon has to leave for the first."""
    harness = Harness(**({"num_host_frames": 8} | changes))
    requests = [harness.add("a", range(18), max_tokens=9, **(first or {}))]
    harness.step()
    requests.append(harness.add("b", range(100, 115), max_tokens=12, **(second or {})))
    return harness, *requests


def test_the_newest_request_is_swapped_and_resumes_with_the_same_tokens():
    harness, first, second = filled()
    harness.until(lambda: first.num_tokens == 25)
    # b needs a tenth frame since its 17th token and waits for it; a needs one now, and takes it.
    assert list(first.table.held_frames()) == [0, 1, 2, 3, 4, 9]
    output = harness.step()
    assert output.swap_out == (SwapOut(5, 0), SwapOut(6, 1), SwapOut(7, 2), SwapOut(8, 3))
    assert [(request.request_id, request.writes[0].frames) for request in output.requests] == [("a", (5,))]
    stats = harness.scheduler.stats()
    assert (stats.running, stats.swapped, stats.host_usage) == (1, 1, 4 / 8)
    harness.run()
    assert harness.is_solo(first)
    assert harness.is_solo(second)
    counters = harness.scheduler.stats().counters
    assert (counters.preemptions, counters.swaps, counters.resumes, counters.recomputes) == (1, 1, 1, 0)


def test_a_resumed_request_computes_in_the_step_after_its_frames_have_arrived():
    harness, _, second = filled()
    harness.until(lambda: second.state is RequestState.SWAPPED)
    output = harness.until(lambda: second.state is RequestState.RUNNING)
    assert output.swap_in == (SwapIn(0, 0), SwapIn(1, 1), SwapIn(2, 2), SwapIn(3, 3))
    assert "b" not in [request.request_id for request in output.requests]
    assert [request.request_id for request in harness.step().requests] == ["b"]


def test_without_room_in_host_memory_the_request_is_computed_again():
    harness, first, second = filled(num_host_frames=3)
    harness.run()
    counters = harness.scheduler.stats().counters
    assert (counters.swaps, counters.recomputes) == (0, 1)
    assert harness.is_solo(first)
    assert harness.is_solo(second)


def test_a_recompute_makes_the_same_groups_again_in_the_same_precisions():
    harness, _, second = filled(num_host_frames=0, num_frames=11)
    harness.step()
    harness.set_precision(second, FP8)
    harness.until(lambda: second.state is RequestState.WAITING)
    runs = list(second.table.runs)
    assert [(run.start, run.precision) for run in runs] == [(0, BF16), (16, FP8)]
    harness.set_precision(second, BF16)
    harness.run()
    assert [(run.start, run.precision) for run in second.table.runs][:2] == runs
    assert second.mixed
    assert harness.is_solo(second)


def test_priority_decides_who_leaves():
    harness = Harness(num_host_frames=8)
    low = harness.add("a", range(18), max_tokens=12, priority=1)
    high = harness.add("b", range(100, 113), max_tokens=12, priority=0)
    harness.until(lambda: harness.scheduler.stats().swapped == 1)
    assert (low.state, high.state) == (RequestState.SWAPPED, RequestState.RUNNING)
    harness.run()
    assert harness.is_solo(low)
    assert harness.is_solo(high)


def test_demotion_comes_before_swap_and_joins_the_oldest_two_frames():
    harness, first, second = filled(first={"allow_demotion": True})
    output = harness.until(lambda: first.num_tokens == 26)
    assert output.demote == (Demote((0, 1), 8, FP8),)
    assert first.table.sealed[:2] == [SealedGroup(0, 0, 8, FP8), SealedGroup(2, 8, 4, BF16)]
    # The frame that became free is the one that it needed.
    assert list(first.table.held_frames()) == [0, 2, 3, 4, 9, 1]
    assert harness.scheduler.stats().counters.preemptions == 0
    harness.run()
    assert first.mixed
    assert not second.mixed
    assert harness.is_solo(second)


def test_nothing_is_demoted_under_batch_invariance():
    harness, first, _ = filled(batch_invariant=True, first={"allow_demotion": True}, second={"allow_demotion": True})
    harness.run()
    stats = harness.scheduler.stats()
    assert (stats.memory.demoted, stats.counters.swaps) == (0, 1)
    assert harness.is_solo(first)


def test_a_demoted_request_that_is_computed_again_keeps_its_groups():
    harness = Harness(num_host_frames=0)
    harness.add("a", range(18), max_tokens=16)
    harness.step()
    second = harness.add("b", range(100, 115), max_tokens=12, allow_demotion=True)
    harness.until(lambda: second.state is RequestState.WAITING and second.was_admitted)
    runs = [(run.start, run.precision) for run in second.table.runs]
    assert runs[0] == (0, FP8)
    harness.run()
    assert [(run.start, run.precision) for run in second.table.runs][: len(runs)] == runs


def test_idle_prefix_frames_give_way_before_anything_else():
    harness = Harness(enable_prefix_caching=True, num_host_frames=8)
    harness.add("a", range(16), max_tokens=1)
    harness.run()
    assert harness.scheduler.stats().usage == 0.0
    harness.add("b", range(100, 130), max_tokens=8)
    moved = [move for _ in range(3) for move in harness.step().swap_out]
    # The tail of a's chain first.
    assert moved == [SwapOut(3, 0), SwapOut(2, 1)]
    harness.run()
    assert harness.scheduler.stats().counters.preemptions == 0


def test_swapped_requests_displace_prefixes_in_host_memory():
    harness = Harness(enable_prefix_caching=True, num_host_frames=4)
    harness.add("old", range(500, 516), max_tokens=1)
    harness.run()
    harness.add("a", range(18), max_tokens=9)
    harness.step()
    second = harness.add("b", range(100, 115), max_tokens=12)
    harness.until(lambda: second.state is RequestState.SWAPPED)
    stats = harness.scheduler.stats()
    assert stats.host_usage == 1.0
    assert stats.memory.evicted_from_host > 0
    harness.run()
    assert harness.is_solo(second)


@pytest.mark.parametrize(("protected_steps", "expected"), [(0, 7), (8, 8)])
def test_a_resumed_request_is_no_victim_at_once(protected_steps, expected):
    harness = Harness(num_host_frames=40, protected_steps=protected_steps, num_frames=8)
    shapes = ((5, 23, INT4), (8, 15, INT4), (6, 19, BF16))
    requests = [
        harness.add(name, range(100 * i, 100 * i + num_prompt), max_tokens=num_answer, precision=precision)
        for i, (name, (num_prompt, num_answer, precision)) in enumerate(zip("abc", shapes, strict=True))
    ]
    resumed_at, steps_between = {}, []
    while harness.scheduler.has_work:
        before = {request.request_id: request.state for request in requests}
        output = harness.step()
        for request in requests:
            change = (before[request.request_id], request.state)
            if change == (RequestState.SWAPPED, RequestState.RUNNING):
                resumed_at[request.request_id] = output.step
            if change == (RequestState.RUNNING, RequestState.SWAPPED) and request.request_id in resumed_at:
                steps_between.append(output.step - resumed_at[request.request_id])
    assert min(steps_between) == expected
    assert all(harness.is_solo(request) for request in requests)


@pytest.mark.parametrize("host_frames", [0, 3, 40])
def test_two_requests_that_do_not_fit_together_both_finish_without_taking_turns(host_frames):
    harness = Harness(num_host_frames=host_frames)
    requests = [harness.add(name, range(100 * i, 100 * i + 10), max_tokens=30) for i, name in enumerate("ab")]
    harness.run()
    assert harness.scheduler.stats().counters.preemptions <= 2
    assert all(harness.is_solo(request) for request in requests)


def test_shared_frames_stay_in_the_pool_when_one_holder_is_swapped():
    harness = Harness(enable_prefix_caching=True, num_host_frames=8)
    first = harness.add("a", range(14), max_tokens=20)
    harness.step()
    second = harness.add("b", [*range(12), 50, 51], max_tokens=16)
    output = harness.until(lambda: second.state is RequestState.SWAPPED)
    shared = {group.frame for group in first.table.sealed[:3]}
    assert [group.frame for group in second.table.sealed[:3]] == [group.frame for group in first.table.sealed[:3]]
    assert not shared & {move.frame for move in output.swap_out}
    assert all(harness.scheduler.memory.pool.holders(frame) == 2 for frame in shared)
    harness.run()
    assert harness.is_solo(first)
    assert harness.is_solo(second)


def test_nobody_is_admitted_while_somebody_is_swapped():
    harness, first, second = filled()
    harness.until(lambda: second.state is RequestState.SWAPPED)
    third = harness.add("c", [200], max_tokens=1)
    while second.state is RequestState.SWAPPED:
        assert third.state is RequestState.WAITING
        harness.step()
    harness.run()
    assert all(harness.is_solo(request) for request in (first, second, third))


def test_a_request_of_better_rank_does_not_wait_behind_a_swapped_one():
    harness, first, second = filled(second={"priority": 50})
    harness.until(lambda: second.state is RequestState.SWAPPED)
    urgent = harness.add("u", [200, 201], max_tokens=1, priority=-100)
    assert "u" in [request.request_id for request in harness.step().requests]
    assert second.state is RequestState.SWAPPED
    harness.run()
    assert all(harness.is_solo(request) for request in (first, second, urgent))


def test_a_swapped_request_that_has_grown_old_is_not_passed_any_more():
    harness, first, second = filled(second={"priority": 1}, aging_steps=3)
    harness.until(lambda: second.state is RequestState.SWAPPED)
    late = harness.add("u", [200, 201], max_tokens=1)  # better by one, and more than three steps younger
    while second.state is RequestState.SWAPPED:
        assert late.state is RequestState.WAITING
        harness.step()
    harness.run()
    assert all(harness.is_solo(request) for request in (first, second, late))


def test_nobody_takes_the_room_that_a_request_of_better_rank_waits_for():
    harness, first, second = filled(second={"priority": 50})
    harness.until(lambda: second.state is RequestState.SWAPPED)
    urgent = harness.add("u", range(200, 230), max_tokens=2, priority=-100)
    harness.until(lambda: urgent.state is not RequestState.WAITING)
    assert (first.state, second.state) == (RequestState.FINISHED, RequestState.SWAPPED)
    harness.run()
    assert all(harness.is_solo(request) for request in (first, second, urgent))


def test_what_was_evicted_in_a_step_is_not_displaced_in_it():
    harness = Harness(enable_prefix_caching=True, num_host_frames=2)
    harness.add("old", range(20), max_tokens=1)
    harness.run()
    harness.add("big", range(100, 139), max_tokens=1)
    # Five frames have to go for ten; the first two get a slot, the others are dropped.
    assert harness.step().swap_out == (SwapOut(4, 0), SwapOut(3, 1))
    assert harness.scheduler.stats().memory.evicted == 5


def test_a_resumed_request_can_be_shared_again():
    harness, _, second = filled(enable_prefix_caching=True)
    harness.until(lambda: second.state is RequestState.SWAPPED)
    harness.until(lambda: second.state is RequestState.RUNNING)
    harness.step()
    third = harness.add("c", range(100, 115), max_tokens=1)
    harness.until(lambda: third.was_admitted)
    assert third.num_cached_prompt_tokens == 12
