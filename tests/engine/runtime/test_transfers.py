"""Swaps beside the computation: who waits for what, and an engine whose copies are as late as they may be."""

import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.runtime.backend import CPU, Backend
from pagefleet_engine.runtime.transfers import Transfers
from pagefleet_engine.testing import tiny_core, tiny_decoder


class LateLane:
    """Begins nothing before somebody waits for it: a stream that is slower than everything else."""

    def __init__(self):
        self.queued = []
        self.num_done = self.num_run = self.num_waits = 0

    def run(self, copies, /):
        self.queued.append(copies)
        self.num_run += 1
        return self.num_run

    def wait(self, mark, /):
        self.num_waits += 1
        while self.num_done < mark:
            self.queued.pop(0)()
            self.num_done += 1

    def is_done(self, mark, /):
        return mark <= self.num_done


class NeverWaiting(LateLane):
    """The fault that the tests below must notice: copies end only when nobody needs them any more."""

    def wait(self, mark, /):
        self.num_waits += 1


def begun(lane, *transfers):
    done = []
    found = Transfers(lane)
    for number, frames in enumerate(transfers):
        found.begin(frames, lambda n=number: done.append(n))
    return found, done


def test_whoever_touches_a_frame_waits_for_its_last_transfer_and_for_those_before():
    transfers, done = begun(LateLane(), [1, 2], [3], [2, 4])
    transfers.wait_for([3, 9])
    assert done == [0, 1]
    transfers.wait_for([1, 3])
    assert done == [0, 1]
    transfers.wait_for([2])
    assert done == [0, 1, 2]
    assert not transfers.are_pending


def test_untouched_frames_wait_for_nothing():
    lane = LateLane()
    transfers, done = begun(lane, [1], [2])
    transfers.wait_for([0, 3])
    assert (done, lane.num_waits, transfers.are_pending) == ([], 0, True)


def test_waiting_for_all_ends_everything_and_nothing_is_waited_for_twice():
    lane = LateLane()
    transfers, done = begun(lane, [1], [2])
    transfers.wait_for_all()
    transfers.wait_for_all()
    transfers.wait_for([1, 2])
    assert (done, lane.num_waits) == ([0, 1], 1)


def test_what_has_ended_by_itself_is_forgotten():
    lane = LateLane()
    transfers, done = begun(lane, [1], [2])
    lane.wait(1)
    assert transfers.are_pending
    transfers.wait_for([1])
    assert (done, lane.num_waits) == ([0], 1)


DECODER = tiny_decoder(seed=5)


def answers(lane, backend):
    core = tiny_core(
        decoder=DECODER, raw_dtype=torch.bfloat16, block_size=8, backend=backend, lane=lane,
        num_frames=14, num_host_frames=10, max_num_batched_tokens=16, enable_prefix_caching=True,
    )  # fmt: skip
    for index, precision in enumerate((Precision.FP8_E4M3, Precision.BF16, Precision.INT4, Precision.BF16)):
        prompt = [(index // 2 * 97 + 7 * i * i) % 256 for i in range(20 + 8 * index)]
        sampling = SamplingParams(temperature=0.0, max_tokens=25, ignore_eos=True)
        core.add(Request(request_id=str(index), prompt_token_ids=prompt, sampling=sampling, precision=precision))
    found = {}
    while core.has_work:
        for name, output in core.step():
            found.setdefault(name, []).append((output.token_ids, output.error))
    return found, core.scheduler.stats()


def test_late_copies_change_no_token():
    for backend in (CPU, Backend(is_paged=True)):
        want, stats = answers(None, backend)
        lane = LateLane()
        assert answers(lane, backend)[0] == want
        assert stats.counters.swaps > 0
        assert stats.memory.evicted_to_host > 0
        assert lane.num_waits > 0


def test_an_engine_that_does_not_wait_gives_other_answers():
    assert answers(NeverWaiting(), CPU)[0] != answers(None, CPU)[0]
