"""How many requests a pool holds and how much of it is wasted, by running the engine's scheduler without a model.

The scheduler and its frames are the real ones; every step "computes" at once and samples a constant. `contiguous` is
the same scheduler with a cap: floor(pool / max_model_len) requests, each of which owns its whole reservation.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pagefleet_cli.bench.modes import Mode
from pagefleet_engine.memory.frame_pool import FrameState
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.scheduler import Scheduler
from pagefleet_kernels.layout import FrameLayout

MOST: Final = 1024
WARM_UP: Final = 0.25
"""Share of the steps that is left out of every mean."""
POISSON_FRAMES: Final = 32_000
"""Frames per request that arrives and step: with FP8 about 0.8 of the pool is then in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The pool and the requests of a comparison."""

    layout: FrameLayout
    num_frames: int
    max_model_len: int
    num_prompt: int = 1500
    num_answer: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one mode holds."""

    mode: str
    at_once: float  # mean number of running requests while more wait
    at_most: int
    waste: float  # bytes held or reserved that hold no token, as a share of the pool; mean of a Poisson run
    usage: float  # bytes held or reserved in the same run, as a share of the pool
    preemptions: int  # in both runs


def measure_holding(sizes: Sizes, mode: Mode, *, seed: int = 11, steps: int = 4000) -> Holding:
    """Both runs of one mode."""
    full, running = _scheduler(sizes, mode), list[int]()
    for _ in _saturate(full, sizes, mode):
        running.append(full.stats().running)
    steady = running[int(len(running) * WARM_UP) :]
    poisson, wasted, used = _scheduler(sizes, mode), list[float](), list[float]()
    for _ in _arrive(poisson, sizes, mode, seed, steps):
        held, waste = held_and_wasted(poisson, sizes, mode)
        used.append(held)
        wasted.append(waste)
    first = int(steps * WARM_UP)
    return Holding(
        mode=mode.name,
        at_once=sum(steady) / len(steady),
        at_most=max(running),
        waste=sum(wasted[first:]) / len(wasted[first:]),
        usage=sum(used[first:]) / len(used[first:]),
        preemptions=full.stats().counters.preemptions + poisson.stats().counters.preemptions,
    )


def held_and_wasted(scheduler: Scheduler, sizes: Sizes, mode: Mode) -> tuple[float, float]:
    """Shares of the pool: bytes that requests hold or have reserved, and those of them without a token."""
    layout, total = sizes.layout, sizes.num_frames * sizes.layout.frame_bytes
    per_token = layout.payload_bytes / layout.block_size
    running = [request for request in scheduler.requests.values() if request.table.num_tokens]
    if mode.reserves:
        reserved = len(running) * sizes.max_model_len * per_token
        filled = sum(request.table.num_tokens for request in running) * per_token
        return reserved / total, (reserved - filled) / total
    counts = scheduler.memory.pool.counts()
    frames = counts[FrameState.OPEN] + counts[FrameState.SEALED]
    wasted = frames * _unused_of_full(layout) + sum(_unwritten(request, layout) for request in running) * per_token
    return frames * layout.frame_bytes / total, wasted / total


def _unused_of_full(layout: FrameLayout) -> int:
    """Bytes of a full frame behind its scales."""
    return layout.frame_bytes - layout.payload_bytes - 8 * layout.num_layers * layout.num_kv_heads


def _unwritten(request: Request, layout: FrameLayout) -> int:
    """Tokens that its open frames still have room for."""
    group = request.table.open
    return 0 if group is None else len(group.frames) * layout.block_size - group.num_tokens


def _scheduler(sizes: Sizes, mode: Mode) -> Scheduler:
    cap = mode.max_num_seqs(
        num_frames=sizes.num_frames,
        block_size=sizes.layout.block_size,
        max_model_len=sizes.max_model_len,
        most=MOST,
    )
    config = SchedulerConfig(
        num_frames=sizes.num_frames,
        num_host_frames=10 * sizes.num_frames,
        max_num_seqs=cap,
        max_num_batched_tokens=2048,
        max_model_len=sizes.max_model_len,
        max_num_queued=100_000,
    )
    return Scheduler(config, sizes.layout)


def _saturate(scheduler: Scheduler, sizes: Sizes, mode: Mode) -> Iterator[None]:
    """Steps while requests of one size wait: four times as many as fit."""
    length = sizes.num_prompt + sizes.num_answer
    fit = sizes.num_frames * sizes.layout.tokens_per_frame(mode.precision) // length
    for number in range(4 * min(fit, scheduler.config.max_num_seqs) + 4):
        scheduler.add(_request(number, sizes.num_prompt, sizes.num_answer, mode))
    while (stats := scheduler.stats()).waiting or stats.swapped:
        _step(scheduler)
        yield


def _arrive(scheduler: Scheduler, sizes: Sizes, mode: Mode, seed: int, steps: int) -> Iterator[None]:
    """Steps with random arrivals of random lengths, the same for every mode."""
    generator, number, at = random.Random(seed), 0, 0.0
    for now in range(steps):
        while at <= now:
            number += 1
            prompt = generator.randint(sizes.num_prompt // 3, sizes.num_prompt * 5 // 3)
            answer = generator.randint(sizes.num_answer // 5, sizes.num_answer * 9 // 5)
            scheduler.add(_request(number, prompt, answer, mode))
            at += generator.expovariate(sizes.num_frames / POISSON_FRAMES)
        _step(scheduler)
        yield


def _step(scheduler: Scheduler) -> None:
    output = scheduler.schedule()
    scheduler.update(output, {request.request_id: [1] for request in output.requests if request.samples})


def _request(number: int, num_prompt: int, num_answer: int, mode: Mode) -> Request:
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=[number] * num_prompt,
        sampling=SamplingParams(max_tokens=num_answer),
        precision=mode.precision,
    )
