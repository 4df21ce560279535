"""Choices and beams that share frames: pools of 20 frames, blocks of 4 tokens."""

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.moves import CopyFrame
from pagefleet_engine.request import RequestState
from pagefleet_engine.scheduling.testing import Harness

FP8, INT4 = Precision.FP8_E4M3, Precision.INT4


def make_harness(**changes):
    return Harness(**({"num_frames": 20, "max_num_seqs": 8} | changes))


def test_choices_wait_for_the_prompt_and_share_its_sealed_frames():
    harness = make_harness(max_num_batched_tokens=6)
    first = harness.add("a", range(10), seed=0)
    choices = [harness.add(f"a{i}", range(10), seed=i, fork_of="a") for i in (1, 2)]
    assert [list(r.token_ids) for r in harness.step().requests] == [list(range(6))]
    assert harness.scheduler.stats().waiting == 2
    harness.step()
    assert [choice.num_computed for choice in choices] == [9, 9]
    output = harness.step()
    assert [(r.request_id, list(r.token_ids)) for r in output.requests] == [
        ("a", [first.token_ids[10]]),
        ("a1", [9]),
        ("a2", [9]),
    ]
    # All three write into the open frame 2; the last one to do so has it for itself by then.
    assert output.copy == (CopyFrame(2, 3), CopyFrame(2, 4))
    assert [r.writes[0].frames for r in output.requests] == [(3,), (4,), (2,)]
    assert [[group.frame for group in r.context] for r in output.requests] == [[0, 1]] * 3
    harness.run()
    assert all(harness.is_solo(request) for request in (first, *choices))
    assert len({tuple(request.token_ids) for request in (first, *choices)}) == 3
    assert harness.scheduler.stats().counters.forks == 2


def test_a_choice_whose_last_group_is_sealed_already_computes_that_group():
    harness = make_harness()
    harness.add("a", range(8), max_tokens=6, precision=FP8)
    harness.step()
    choice = harness.add("b", range(8), seed=1, precision=FP8, fork_of="a")
    assert choice.num_computed == 0
    harness.run()
    assert harness.is_solo(choice)


def test_sealing_a_shared_open_group_copies_the_frame_it_is_sealed_into():
    harness = make_harness()
    first = harness.add("a", range(14), max_tokens=6, precision=FP8)
    harness.step()
    choice = harness.add("b", [*range(14), first.token_ids[14]], max_tokens=6, precision=FP8, fork_of="a")
    assert [choice.num_computed, first.num_computed] == [14, 14]
    outputs = [harness.step(), harness.step()]
    # Both seal the group of frames 1 and 2: a writes into a copy of 2, and seals into a copy of 1.
    assert [output.copy for output in outputs] == [(CopyFrame(2, 3),), (CopyFrame(1, 4),)]
    assert [r.writes[0].frames for r in outputs[1].requests] == [(4, 3), (1, 2)]
    harness.run()
    assert harness.is_solo(first)
    assert harness.is_solo(choice)


def test_a_beam_takes_over_the_frames_of_its_parked_parent_without_a_copy():
    harness = make_harness()
    parent = harness.add("a", range(9), max_tokens=1, keep_frames=True)
    harness.run()
    assert parent.state is RequestState.PARKED
    stats = harness.scheduler.stats()
    assert (stats.parked, stats.usage, harness.scheduler.has_work) == (1, 3 / 20, False)
    beams = [harness.add(f"b{token}", [*range(9), token], fork_of="a") for token in (5, 6)]
    harness.scheduler.abort("a")
    assert [beam.num_computed for beam in beams] == [9, 9]
    output = harness.step()
    assert output.copy == (CopyFrame(2, 3),)
    harness.run()
    assert all(harness.is_solo(beam) for beam in beams)
    assert harness.scheduler.stats().usage == 0.0


def test_a_fork_of_a_request_that_has_gone_is_an_ordinary_request():
    harness = make_harness()
    harness.add("a", range(9))
    child = harness.add("b", range(9), fork_of="a")
    harness.scheduler.abort("a")
    other = harness.add("c", range(9), fork_of="never seen")
    harness.run()
    assert harness.is_solo(child)
    assert harness.is_solo(other)


def test_a_fork_that_waits_for_its_parent_can_be_aborted():
    harness = make_harness()
    harness.add("a", range(9))
    harness.add("b", range(9), fork_of="a")
    harness.scheduler.abort("b")
    assert harness.scheduler.stats().waiting == 1
    harness.run()
    assert list(harness.reasons) == ["a"]


def test_a_fork_in_another_precision_shares_nothing():
    harness = make_harness()
    harness.add("a", range(20), max_tokens=8)
    harness.step()
    child = harness.add("b", range(20), precision=INT4, fork_of="a")
    harness.step()
    assert child.table.num_tokens == 20
    assert child.num_cached_prompt_tokens == 0
    harness.run()
    assert harness.is_solo(child)


def test_what_idle_requests_hold_gives_way_when_a_running_one_has_nothing_else():
    harness = make_harness(num_frames=10)
    harness.add("a", range(30), max_tokens=1, keep_frames=True)
    harness.run()
    request = harness.add("b", range(100, 120), max_tokens=10)
    harness.run()
    assert harness.is_solo(request)
    stats = harness.scheduler.stats()
    assert (stats.counters.resets, stats.parked, stats.usage) == (1, 1, 0.0)
    harness.scheduler.abort("a")
    harness.scheduler.check_invariants()
