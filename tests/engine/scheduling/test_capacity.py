"""How much a pool holds, by running the scheduler with SmolLM2's real frames: 30 layers, 3 KV heads, head dim 64."""

import random

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.frame_pool import FrameState
from pagefleet_engine.request import Request, RequestState, SamplingParams
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.scheduler import Scheduler
from pagefleet_kernels.layout import FrameLayout

LAYOUT = FrameLayout(num_layers=30, num_kv_heads=3, head_dim=64, block_size=16)


def make_scheduler(num_frames):
    return Scheduler(
        SchedulerConfig(
            num_frames=num_frames,
            num_host_frames=10 * num_frames,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            max_model_len=8192,
        ),
        LAYOUT,
    )


def step(scheduler):
    output = scheduler.schedule()
    scheduler.update(output, {request.request_id: [1] for request in output.requests if request.samples})


def make_request(number, num_prompt, num_answer, precision):
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=[number] * num_prompt,
        sampling=SamplingParams(max_tokens=num_answer),
        precision=precision,
    )


def mean_running(precision, num_frames=500, num_requests=40):
    """Requests of 1,500 + 500 tokens that run at once on average while more are waiting, after a warm-up."""
    scheduler = make_scheduler(num_frames)
    for number in range(num_requests):
        scheduler.add(make_request(number, 1500, 500, precision))
    running = []
    while (stats := scheduler.stats()).waiting or stats.swapped:
        step(scheduler)
        running.append(stats.running)
    steady = running[len(running) // 4 :]
    return sum(steady) / len(steady)


def test_the_same_bytes_hold_more_requests_in_fewer_bits():
    held = {p: mean_running(p) for p in (Precision.BF16, Precision.FP8_E4M3, Precision.INT4)}
    ratios = {precision: running / held[Precision.BF16] for precision, running in held.items()}
    print(f"requests at once in 500 frames: {held}; against bf16: {ratios}")
    assert ratios[Precision.FP8_E4M3] >= 1.9
    assert ratios[Precision.INT4] >= 3.2


def wasted_bytes(scheduler):
    """Bytes of frames that are not free, less those of the tokens of every request: also what nobody would give back.

    A sealed FP8 token takes a byte per element and its part of two scales per head and layer, an open one two bytes.
    """
    elements = 2 * LAYOUT.num_layers * LAYOUT.num_kv_heads * LAYOUT.head_dim
    scales = 2 * 4 * LAYOUT.num_layers * LAYOUT.num_kv_heads
    taken = sum(count for state, count in scheduler.memory.pool.counts().items() if state is not FrameState.FREE)
    used = 0
    for request in scheduler.requests.values():
        if request.state is RequestState.RUNNING:
            sealed, open_tokens = request.table.sealed, request.table.num_tokens - request.table.num_sealed_tokens
            used += sum(group.length * elements + scales for group in sealed) + 2 * open_tokens * elements
    return taken * LAYOUT.frame_bytes - used


def test_fp8_wastes_less_than_a_twenty_fifth_of_the_pool():
    generator, scheduler = random.Random(11), make_scheduler(640)
    wasted, used, number = [], [], 0
    next_arrival = 0.0
    for now in range(4000):
        while next_arrival <= now:
            number += 1
            prompt, answer = generator.randint(500, 2500), generator.randint(100, 900)
            scheduler.add(make_request(number, prompt, answer, Precision.FP8_E4M3))
            next_arrival += generator.expovariate(1 / 50)
        step(scheduler)
        if now % 50 == 0:
            scheduler.check_invariants()
        wasted.append(wasted_bytes(scheduler) / (640 * LAYOUT.frame_bytes))
        used.append(scheduler.stats().usage)
    steady = slice(1000, None)
    waste, use = (sum(values[steady]) / len(values[steady]) for values in (wasted, used))
    print(f"{number} requests; pool used {use:.1%}, wasted {waste:.2%}, at most {max(wasted):.2%}")
    assert use > 0.7
    assert waste < 0.04
    for request_id in list(scheduler.requests):
        scheduler.abort(request_id)
    scheduler.check_invariants()
    assert wasted_bytes(scheduler) == 0
