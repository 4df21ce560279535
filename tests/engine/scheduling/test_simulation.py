"""Random histories through the scheduler and a model of the KV contents.

After every step the books must agree, and whatever a request reads must be its own tokens in its own precision. Every
answer must equal the one that the request would have got alone. `make soak-scheduler` runs the long form.
"""

import os
import random
from collections import Counter
from dataclasses import asdict

import pytest

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.frame_pool import FrameState
from pagefleet_engine.request import FinishReason, Request, RequestState, SamplingParams
from pagefleet_engine.scheduling.books import queued_tokens
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.limits import RequestTooLong, WaitingQueueFull
from pagefleet_engine.scheduling.scheduler import Scheduler
from pagefleet_engine.scheduling.testing import AskedPrecisions, KVModel, TinyLayout, solo_answer

STEPS = int(os.environ.get("PAGEFLEET_SOAK_STEPS", "1500"))
FIRST_SEED = int(os.environ.get("PAGEFLEET_SOAK_SEED", "1"))
LAYOUT = TinyLayout()
VOCAB = 100
EOS = 0


class Simulation:
    """One scheduler, its clients, and what has happened."""

    def __init__(self, seed, **changes):
        values = {
            "num_frames": 31,
            "num_host_frames": 24,
            "max_num_seqs": 10,
            "max_num_batched_tokens": 40,
            "max_model_len": 120,
            "max_num_queued": 12,
            "max_num_queued_tokens": 300,
            "eos_token_ids": (EOS,),
            "enable_prefix_caching": True,
            "cache_key": b"simulation",
            "aging_steps": 50,
        } | changes
        self.config = SchedulerConfig(**values)
        self.random = random.Random(seed)
        self.scheduler = Scheduler(self.config, LAYOUT)
        self.model = KVModel(
            num_frames=self.config.num_frames,
            num_slots=self.config.num_host_frames,
            block_size=LAYOUT.block_size,
            vocab_size=VOCAB,
        )
        self.prefixes = [self.tokens(length) for length in (9, 20, 33)]
        self.conversations = []
        self.live = {}
        self.asked = AskedPrecisions(LAYOUT)
        self.parked = []
        self.happened = Counter()
        self.num_requests = 0

    def tokens(self, count):
        return [self.random.randrange(1, VOCAB) for _ in range(count)]

    def run(self, num_steps):
        for step in range(num_steps):
            # Bursts, so that the queue, the cap and the pool all come under pressure and recover.
            for _ in range(self.random.choice((0, 0, 0, 1, 2) if step % 100 < 60 else (0, 0, 0, 0, 1))):
                self.arrive()
            self.disturb()
            self.step()
        self.drain()

    def drain(self):
        for request in self.parked:
            self.scheduler.abort(request.request_id)
        self.parked.clear()
        self.scheduler.set_cap(self.config.max_num_seqs)
        patience = 40 * (len(self.live) + 1)
        while self.scheduler.has_work:
            patience -= 1
            assert patience, f"{[(r.request_id, r.state) for r in self.live.values()]} starve"
            self.step()
            for request in self.parked:
                self.scheduler.abort(request.request_id)
            self.parked.clear()
        stats = self.scheduler.stats()
        assert (stats.usage, stats.host_usage) == (0.0, 0.0)
        assert stats.frames[FrameState.FREE] + stats.frames[FrameState.SEALED] == self.config.num_frames
        assert (stats.running, stats.waiting, stats.swapped, stats.parked) == (0, 0, 0, 0)
        assert not self.live

    # What clients and operators do

    def arrive(self):
        if self.parked and self.random.random() < 0.5:
            self.beam()
            return
        prompt = self.prompt()
        first = self.request(prompt, keep_frames=self.random.random() < 0.1)
        if self.submit(first) and self.random.random() < 0.25:
            for choice in range(1, self.random.randint(2, 4)):
                self.submit(self.request(prompt, like=first, seed=choice, fork_of=first.request_id))

    def prompt(self):
        kind = self.random.random()
        if kind < 0.35:
            return self.random.choice(self.prefixes) + self.tokens(self.random.randint(1, 10))
        if kind < 0.5 and self.conversations:
            return self.random.choice(self.conversations[-8:])[:80] + self.tokens(self.random.randint(1, 6))
        return self.tokens(self.random.choice((1, 2, 3, 5, 8, 60)))

    def request(self, prompt, like=None, seed=0, **changes):
        self.num_requests += 1
        return Request(
            request_id=f"r{self.num_requests}",
            prompt_token_ids=prompt,
            sampling=SamplingParams(max_tokens=self.random.choice((1, 20, 40, 60)), seed=seed),
            precision=like.precision if like else self.random.choice(list(Precision)),
            cache_salt=like.cache_salt if like else self.random.choice(("", "", "other tenant")),
            priority=self.random.choice((0, 0, 0, 1, -1)),
            allow_demotion=self.random.random() < 0.3,
            **changes,
        )

    def beam(self):
        """Continue a parked request in two ways and give it back."""
        parent = self.parked.pop(self.random.randrange(len(self.parked)))
        for token in self.tokens(2):
            child = self.request([*parent.token_ids, token], like=parent, fork_of=parent.request_id)
            if len(child.prompt_token_ids) < 90:
                self.submit(child)
        self.scheduler.abort(parent.request_id)

    def submit(self, request):
        try:
            self.scheduler.add(request)
        except RequestTooLong:
            self.happened["too long"] += 1
            return False
        except WaitingQueueFull:
            self.happened["queue full"] += 1
            return False
        self.live[request.request_id] = request
        self.asked.note(request)
        return True

    def disturb(self):
        draw = self.random.random()
        if draw < 0.02:
            self.scheduler.set_cap(self.random.randint(1, self.config.max_num_seqs))
        elif draw < 0.03:
            self.scheduler.set_max_model_len(self.random.randint(60, self.config.max_model_len))
        elif draw < 0.04:
            self.scheduler.set_token_budget(self.random.randint(1, self.config.max_num_batched_tokens))
        elif draw < 0.08 and self.live:
            self.set_precision(self.pick())
        elif draw < 0.11 and self.live:
            self.abort(self.pick())

    def pick(self):
        return self.live[self.random.choice(list(self.live))]

    def set_precision(self, request):
        try:
            precision = self.random.choice(list(Precision))
            self.scheduler.set_precision(request.request_id, precision)
            self.asked.change(request, precision)
            self.happened[f"precision set while {request.state}"] += 1
        except RequestTooLong:
            self.happened["precision refused"] += 1

    def abort(self, request):
        self.happened[f"aborted while {request.state}"] += 1
        self.scheduler.abort(request.request_id)
        del self.live[request.request_id]

    # One step

    def step(self):
        running = self.scheduler.stats().running
        output = self.scheduler.schedule()
        self.scheduler.check_invariants()
        stats = self.scheduler.stats()
        assert stats.running <= max(stats.cap, running)
        assert output.num_tokens == sum(len(request.token_ids) for request in output.requests)
        assert output.num_tokens <= self.config.max_num_batched_tokens
        sampled = self.model.execute(output)
        if self.live and self.random.random() < 0.02:
            self.happened["aborted in flight"] += 1
            self.abort(self.pick())
        failed = {name for name in sampled if name in self.live and self.random.random() < 0.002}
        for update in self.scheduler.update(output, sampled, failed):
            self.take(update)
        for request in self.live.values():
            self.asked.note(request)
        self.scheduler.check_invariants()
        books = self.scheduler._books
        assert books.num_waiting_tokens == sum(queued_tokens(request) for request in books.waiting)
        self.poison()

    def take(self, update):
        if update.finish_reason is None:
            return
        request = self.live.pop(update.request_id)
        self.happened[f"ended by {update.finish_reason}"] += 1
        if update.finish_reason is FinishReason.ERROR:
            return
        if request.state is RequestState.PARKED:
            self.parked.append(request)
        self.conversations.append(list(request.token_ids))
        self.check_answer(request, update.stop_token_id)

    def check_answer(self, request, stop_token_id):
        answer = request.token_ids[request.num_prompt_tokens :] + ([EOS] if stop_token_id == EOS else [])
        if request.table.demoted:
            self.happened["demoted answers"] += 1
            return
        want = solo_answer(
            request.prompt_token_ids,
            len(answer),
            precision_at=self.asked.of(request),
            layout=LAYOUT,
            seed=request.sampling.seed,
            vocab_size=VOCAB,
        )
        assert answer == want, request.request_id
        self.happened["mixed answers" if request.mixed else "answers"] += 1

    def poison(self):
        """What is free holds nothing that anybody may read."""
        for frame in range(self.config.num_frames):
            if self.scheduler.memory.pool.state(frame) is FrameState.FREE:
                self.model.frames[frame] = None


POOL_EVENTS = {"swaps", "resumes", "forks", "copied", "demoted", "evicted", "prefix_hit_tokens"}
HOST_EVENTS = {"evicted_to_host", "evicted_from_host", "prefetched", "prefix_host_hit_tokens"}

# Name → changes of the configuration, and what has to happen in such a run for it to prove anything.
CONFIGS = {
    "all at once": ({}, POOL_EVENTS | HOST_EVENTS),
    "little host memory": ({"num_host_frames": 3}, POOL_EVENTS | HOST_EVENTS | {"recomputes"}),
    "no host memory": ({"num_host_frames": 0}, POOL_EVENTS - {"swaps", "resumes"} | {"recomputes"}),
    "no prefix cache": ({"enable_prefix_caching": False}, POOL_EVENTS - {"evicted", "prefix_hit_tokens"}),
    "demotion off": ({"batch_invariant": True}, POOL_EVENTS - {"demoted"} | HOST_EVENTS),
    "resumed requests are hardly protected": ({"protected_steps": 1}, POOL_EVENTS | HOST_EVENTS),
}
SEEDS = list(enumerate(CONFIGS, start=FIRST_SEED))


@pytest.mark.parametrize(("seed", "name"), SEEDS, ids=CONFIGS.keys())
def test_random_histories(seed, name):
    changes, events = CONFIGS[name]
    print(f"seed {seed}, {STEPS} steps, {name}")
    simulation = Simulation(seed, **changes)
    simulation.run(STEPS)
    stats = simulation.scheduler.stats()
    print(stats.counters, stats.memory, sorted(simulation.happened.items()), sep="\n")
    counted = asdict(stats.counters) | asdict(stats.memory)
    least = 20 if STEPS >= 20_000 else 1
    assert {event for event in events if counted[event] < least} == set()
    assert simulation.happened["answers"] >= 20
