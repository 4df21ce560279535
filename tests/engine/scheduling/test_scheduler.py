"""Exact steps: pools of 10 frames, blocks of 4 tokens."""

import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.request import FinishReason, Request, RequestState, SamplingParams
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.limits import RequestTooLong, WaitingQueueFull
from pagefleet_engine.scheduling.output import GroupWrite
from pagefleet_engine.scheduling.scheduler import Scheduler
from pagefleet_engine.scheduling.testing import TinyLayout

BF16, FP8, INT4 = Precision.BF16, Precision.FP8_E4M3, Precision.INT4


def make_scheduler(**changes):
    values = {"num_frames": 10, "max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 40} | changes
    return Scheduler(SchedulerConfig(**values), TinyLayout())


def make_request(request_id, num_prompt, max_tokens=4, **changes):
    sampling = SamplingParams(max_tokens=max_tokens, **changes.pop("sampling", {}))
    prompt = [100 * (ord(request_id[0]) - ord("a")) + i for i in range(num_prompt)]
    return Request(request_id=request_id, prompt_token_ids=prompt, sampling=sampling, **changes)


def step(scheduler, token=7):
    """One step in which every request that samples gets `token`. Returns what each computed, and the updates."""
    output = scheduler.schedule()
    sampled = {request.request_id: [token] for request in output.requests if request.samples}
    updates = scheduler.update(output, sampled)
    scheduler.check_invariants()
    return output, updates


def computed(output):
    return {request.request_id: len(request.token_ids) for request in output.requests}


def tables(scheduler):
    return {
        request_id: ([group.frame for group in request.table.sealed], request.table.open and request.table.open.frames)
        for request_id, request in scheduler.requests.items()
    }


def test_a_prompt_is_cut_by_the_token_budget_and_the_last_chunk_samples():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 18))
    first, updates = step(scheduler)
    assert [(r.start, len(r.token_ids), r.samples) for r in first.requests] == [(0, 16, False)]
    assert updates == []
    assert tables(scheduler) == {"a": ([0, 1, 2, 3], None)}
    second, updates = step(scheduler)
    assert [(r.start, list(r.token_ids), r.samples) for r in second.requests] == [(16, [16, 17], True)]
    assert [group.frame for group in second.requests[0].context] == [0, 1, 2, 3]
    assert second.requests[0].writes == (GroupWrite(16, 4, BF16, (4,), False, 0, 2),)
    assert [(u.request_id, u.new_token_ids, u.finish_reason) for u in updates] == [("a", (7,), None)]


def test_an_fp8_group_is_written_in_bf16_and_sealed_into_its_first_open_frame():
    scheduler = make_scheduler(max_num_batched_tokens=6)
    scheduler.add(make_request("a", 13, precision=FP8))
    writes = [step(scheduler)[0].requests[0].writes for _ in range(3)]
    assert writes == [
        (GroupWrite(0, 8, FP8, (0, 1), False, 0, 6),),
        # Frame 1 is read by the seal, so it cannot hold the next group in the same step.
        (GroupWrite(0, 8, FP8, (0, 1), True, 6, 2), GroupWrite(8, 8, FP8, (2,), False, 0, 4)),
        (GroupWrite(8, 8, FP8, (2, 1), False, 4, 1),),
    ]
    assert tables(scheduler) == {"a": ([0], [2, 1])}


def test_a_group_begun_and_completed_in_one_step_takes_one_frame():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 15, precision=INT4))
    output, _ = step(scheduler)
    assert output.requests[0].writes == (
        GroupWrite(0, 14, INT4, (0,), True, 0, 14),
        GroupWrite(14, 14, INT4, (1,), False, 0, 1),
    )


def test_a_pool_full_of_open_frames_seals_without_a_free_frame():
    scheduler = make_scheduler(num_frames=2, max_num_batched_tokens=7)
    scheduler.add(make_request("a", 7, max_tokens=2, precision=FP8))
    step(scheduler)
    assert scheduler.memory.pool.num_free == 0
    output, _ = step(scheduler)
    assert output.requests[0].writes == (GroupWrite(0, 8, FP8, (0, 1), True, 7, 1),)


def test_every_running_request_decodes_before_a_prompt_gets_the_rest_of_the_budget():
    scheduler = make_scheduler(max_num_batched_tokens=8, num_frames=20)
    scheduler.add(make_request("a", 3))
    scheduler.add(make_request("b", 3))
    assert computed(step(scheduler)[0]) == {"a": 3, "b": 3}
    scheduler.add(make_request("c", 9))
    assert computed(step(scheduler)[0]) == {"a": 1, "b": 1, "c": 6}
    scheduler.add(make_request("d", 3))
    assert computed(step(scheduler)[0]) == {"a": 1, "b": 1, "c": 3, "d": 3}


def test_a_prompt_ahead_in_rank_leaves_a_token_to_each_decode():
    scheduler = make_scheduler(max_num_batched_tokens=6, num_frames=20)
    scheduler.add(make_request("a", 2, priority=1))
    scheduler.add(make_request("b", 2, priority=1))
    step(scheduler)
    scheduler.add(make_request("c", 12, priority=0))
    assert computed(step(scheduler)[0]) == {"a": 1, "b": 1, "c": 4}
    assert computed(step(scheduler)[0]) == {"c": 4, "a": 1, "b": 1}


def test_a_newcomer_has_to_leave_one_frame_to_each_that_runs():
    scheduler = make_scheduler(num_frames=7)
    scheduler.add(make_request("a", 8, max_tokens=9))
    step(scheduler)
    # a has 2 frames of 7. b needs 4, and 1 stays for a; with one token more it would have to wait.
    scheduler.add(make_request("b", 16, max_tokens=2))
    assert list(computed(step(scheduler)[0])) == ["a"]
    scheduler.abort("b")
    scheduler.add(make_request("c", 12, max_tokens=2))
    assert list(computed(step(scheduler)[0])) == ["a", "c"]


def test_the_end_frees_every_frame_and_is_told_to_the_runner():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 3, max_tokens=2))
    step(scheduler)
    _, updates = step(scheduler)
    assert [(u.new_token_ids, u.finish_reason) for u in updates] == [((7,), FinishReason.LENGTH)]
    assert not scheduler.has_work
    assert scheduler.stats().usage == 0.0
    assert step(scheduler)[0].ended == ("a",)
    assert step(scheduler)[0].ended == ()


STOPS = {
    "the model's end of sequence": ({}, 99, (FinishReason.STOP, 99, ())),
    "a stop token of the request": ({"stop_token_ids": (5,)}, 5, (FinishReason.STOP, 5, ())),
    "not the end of sequence when it is ignored": ({"ignore_eos": True}, 99, (None, None, (99,))),
    "no stop token before min_tokens": ({"min_tokens": 1}, 99, (None, None, (99,))),
    "no other token": ({}, 5, (None, None, (5,))),
}


@pytest.mark.parametrize(("sampling", "token", "expected"), STOPS.values(), ids=STOPS.keys())
def test_what_stops_an_answer(sampling, token, expected):
    scheduler = make_scheduler(eos_token_ids=(99,))
    scheduler.add(make_request("a", 3, sampling=sampling))
    _, [update] = step(scheduler, token)
    assert (update.finish_reason, update.stop_token_id, update.new_token_ids) == expected


def test_an_answer_without_max_tokens_ends_with_the_context():
    scheduler = make_scheduler(max_model_len=6)
    scheduler.add(make_request("a", 3, max_tokens=None))
    reasons = [step(scheduler)[1][0].finish_reason for _ in range(3)]
    assert reasons == [None, None, FinishReason.LENGTH]


def test_the_cap_limits_who_runs_and_lowering_it_aborts_nobody():
    scheduler = make_scheduler(initial_cap=3)
    for name in "abcd":
        scheduler.add(make_request(name, 3, max_tokens=3))
    assert list(computed(step(scheduler)[0])) == ["a", "b", "c"]
    scheduler.set_cap(1)
    assert list(computed(step(scheduler)[0])) == ["a", "b", "c"]
    assert (scheduler.stats().running, scheduler.stats().waiting, scheduler.stats().cap) == (3, 1, 1)
    assert list(computed(step(scheduler)[0])) == ["a", "b", "c"]
    assert list(computed(step(scheduler)[0])) == ["d"]


@pytest.mark.parametrize("cap", [0, 5, -1])
def test_a_cap_outside_the_capacity_is_refused(cap):
    with pytest.raises(ValueError, match=f"cap is {cap}: must be 1 to 4"):
        make_scheduler().set_cap(cap)


def test_a_lower_max_model_len_holds_for_new_requests_only():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 20, max_tokens=10))
    scheduler.set_max_model_len(16)
    with pytest.raises(RequestTooLong, match="context is 16 tokens, but 20 in the prompt and 10 in the answer make 30"):
        scheduler.add(make_request("b", 20, max_tokens=10))
    while scheduler.has_work:
        step(scheduler)
    assert scheduler.stats().counters.generated_tokens == 10


def test_a_full_queue_refuses():
    scheduler = make_scheduler(max_num_queued=2, initial_cap=1)
    scheduler.add(make_request("a", 3))
    step(scheduler)
    scheduler.add(make_request("b", 3))
    scheduler.add(make_request("c", 3))
    with pytest.raises(WaitingQueueFull, match="2 requests are waiting already"):
        scheduler.add(make_request("d", 3))


# sentence → (lengths of prompts that wait, length of the next one, refused with)
QUEUED_TOKENS = {
    "what fits": ([10, 20], 70, None),
    "one token too many": ([10, 20], 71, "prompts of 30 tokens are waiting already, and 100 may wait"),
    "the longest prompt that there can be, when nobody waits": ([], 150, None),
    "the shortest prompt behind one that is longer than the limit": (
        [150],
        1,
        "prompts of 150 tokens are waiting already, and 100 may wait",
    ),
}


@pytest.mark.parametrize(("waiting", "length", "message"), QUEUED_TOKENS.values(), ids=QUEUED_TOKENS.keys())
def test_a_queue_of_long_prompts_is_full_sooner(waiting, length, message):
    scheduler = make_scheduler(max_num_queued_tokens=100, max_model_len=200, initial_cap=1, num_frames=64)
    scheduler.add(make_request("runs", 90))
    step(scheduler)
    for number, tokens in enumerate(waiting):
        scheduler.add(make_request(f"w{number}", tokens))
    if message is None:
        scheduler.add(make_request("next", length))
        return
    with pytest.raises(WaitingQueueFull, match=message):
        scheduler.add(make_request("next", length))


def test_forks_wait_without_tokens_of_their_own():
    scheduler = make_scheduler(max_num_queued_tokens=100, max_model_len=200, initial_cap=1, num_frames=64)
    scheduler.add(make_request("runs", 5))
    step(scheduler)
    scheduler.add(make_request("parent", 100))
    for number in range(5):
        scheduler.add(make_request(f"fork{number}", 100, fork_of="parent"))
    assert scheduler._books.num_waiting_tokens == 100
    scheduler.abort("parent")
    assert scheduler._books.num_waiting_tokens == 0


def test_requests_that_can_never_fit_are_refused_with_the_numbers():
    scheduler = make_scheduler(max_model_len=100)
    with pytest.raises(RequestTooLong) as refused:
        scheduler.add(make_request("a", 36, max_tokens=6))
    assert str(refused.value) == (
        "42 tokens in bf16 need 11 frames of KV cache, but the whole pool has 10, enough for 41 tokens: "
        "shorten the prompt or lower max_tokens"
    )
    assert (refused.value.needed, refused.value.limit, refused.value.param) == (11, 10, "prompt")
    scheduler.add(make_request("b", 36, max_tokens=5))
    scheduler.add(make_request("c", 36, max_tokens=6, precision=FP8))


def test_an_empty_prompt_is_refused():
    with pytest.raises(RequestRefused, match="the prompt is empty: send at least one token"):
        make_scheduler().add(make_request("a", 0))


def test_a_precision_in_which_the_request_would_not_fit_is_refused_and_changes_nothing():
    scheduler = make_scheduler(max_model_len=100)
    request = make_request("a", 40, max_tokens=30, precision=FP8)
    scheduler.add(request)
    for _ in range(3):
        step(scheduler)
    with pytest.raises(RequestTooLong) as refused:
        scheduler.set_precision("a", BF16)
    # Five FP8 groups have been begun, with 40 tokens; the other 29 would take 8 BF16 frames.
    assert (refused.value.needed, refused.value.limit) == (13, 10)
    assert request.precision is FP8
    scheduler.set_precision("nobody", BF16)


def test_a_lower_token_budget_holds_from_the_next_step():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 30))
    assert computed(step(scheduler)[0]) == {"a": 16}
    scheduler.set_token_budget(5)
    assert computed(step(scheduler)[0]) == {"a": 5}
    with pytest.raises(ValueError, match="max_num_batched_tokens is 17: must be 1 to 16"):
        scheduler.set_token_budget(17)


def test_a_change_of_precision_holds_from_the_next_group():
    scheduler = make_scheduler()
    request = make_request("a", 6, max_tokens=12)
    scheduler.add(request)
    step(scheduler)
    scheduler.set_precision("a", FP8)
    assert not request.mixed
    while request.num_computed < 16:
        step(scheduler)
    assert [(g.start, g.length, g.precision) for g in request.table.sealed] == [(0, 4, BF16), (4, 4, BF16), (8, 8, FP8)]
    assert request.mixed


def test_the_longest_request_that_is_accepted_finishes():
    for precision in Precision:
        for budget in (1, 3, 16, 64):
            scheduler = make_scheduler(max_model_len=1000, max_num_batched_tokens=budget)
            scheduler.add(make_request("a", 30, max_tokens=None, precision=precision))
            while scheduler.has_work:
                step(scheduler)
            assert scheduler.stats().counters.preemptions == 0


def test_priorities_come_first_and_age():
    scheduler = make_scheduler(initial_cap=1, aging_steps=3)
    scheduler.add(make_request("a", 3, max_tokens=2, priority=1))
    step(scheduler)
    scheduler.add(make_request("b", 3, max_tokens=2, priority=1))
    scheduler.add(make_request("c", 3, max_tokens=2, priority=0))
    order = []
    for name in "defgh":
        scheduler.add(make_request(name, 3, max_tokens=2, priority=0))
        output, _ = step(scheduler)
        order += [name for name in computed(output) if name not in order]
    # c was served before b, but b, which has waited for 3 steps, before those that arrived later than that.
    while scheduler.has_work:
        output, _ = step(scheduler)
        order += [name for name in computed(output) if name not in order]
    assert order == ["a", "c", "d", "e", "f", "b", "g", "h"]


def test_abort_is_allowed_in_every_state():
    scheduler = make_scheduler(initial_cap=1)
    for name in "abc":
        scheduler.add(make_request(name, 20))
    scheduler.abort("c")  # never scheduled
    assert step(scheduler)[0].ended == ("c",)
    scheduler.abort("a")  # half a prompt
    assert scheduler.stats().usage == 0.0
    output = scheduler.schedule()
    assert output.ended == ("a",)
    scheduler.abort("b")  # in flight
    assert scheduler.stats().usage > 0
    assert scheduler.update(output, {}) == []
    scheduler.abort("b")
    scheduler.abort("nobody")
    assert (scheduler.has_work, scheduler.stats().usage) == (False, 0.0)
    assert step(scheduler)[0].ended == ("b",)
    scheduler.check_invariants()


def test_a_request_that_fails_ends_alone():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 3))
    scheduler.add(make_request("b", 3))
    output = scheduler.schedule()
    updates = scheduler.update(output, {"b": [7]}, failed={"a"})
    assert [(u.request_id, u.finish_reason) for u in updates] == [("a", FinishReason.ERROR), ("b", None)]
    assert list(scheduler.requests) == ["b"]


def test_one_step_is_in_flight_at_a_time():
    scheduler = make_scheduler()
    scheduler.add(make_request("a", 3))
    output = scheduler.schedule()
    with pytest.raises(RuntimeError, match="step 1 has not been updated yet"):
        scheduler.schedule()
    scheduler.update(output, {"a": [7]})
    with pytest.raises(RuntimeError, match="step 1 is not the one in flight"):
        scheduler.update(output, {"a": [7]})


def test_ids_in_use_and_priorities_out_of_range_are_refused():
    scheduler = make_scheduler()
    request = make_request("a", 3)
    scheduler.add(request)
    with pytest.raises(ValueError, match="request id a is in use"):
        scheduler.add(make_request("a", 3))
    with pytest.raises(ValueError, match="priority is 101: must be -100 to 100"):
        scheduler.add(make_request("b", 3, priority=101))
    assert request.state is RequestState.WAITING
