"""The real engine under Poisson arrivals, once per mode on the same pool bytes: what holding more requests brings.

`contiguous` is the reservation alone: a cap of floor(pool / max_model_len). Attention runs over frames in every mode,
so the figures show what the memory allows, not two attention kernels.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from pagefleet_cli.bench.models import Lab, Model, make_lab
from pagefleet_cli.bench.modes import Mode
from pagefleet_engine.request import FinishReason, Request, SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of one size that arrive at random moments."""

    num_requests: int = 24
    num_prompt: int = 256
    num_answer: int = 128
    per_second: float = 4.0
    num_frames: int = 128
    max_model_len: int = 1024
    seed: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One mode under the load."""

    mode: str
    tokens_per_s: float  # generated, from the first arrival to the last end
    tokens_per_cpu_s: float  # the same per second of this process's CPU time, which other programs do not change
    at_once: float  # mean number of running requests, by time
    first_token_s: float  # median wait for the first token
    preemptions: int
    seconds: float


@dataclass(slots=True)
class _Tally:
    """What is counted while the load runs."""

    arrived_s: dict[str, float] = field(default_factory=dict)
    waits_s: dict[str, float] = field(default_factory=dict)
    num_tokens: int = 0
    running_seconds: float = 0.0


def serve(model: Model, text: Sequence[int], mode: Mode, load: Load) -> Served:
    """Run the load to its end. Raises ValueError when a request fails."""
    cap = mode.max_num_seqs(
        num_frames=load.num_frames, block_size=16, max_model_len=load.max_model_len, most=load.num_requests
    )
    lab = make_lab(
        model,
        num_frames=load.num_frames,
        num_host_frames=8 * load.num_frames,
        max_num_seqs=cap,
        max_model_len=load.max_model_len,
    )
    tally, arrivals = _Tally(), _arrivals(load)
    began, cpu_began = time.monotonic(), time.process_time()
    for number, at in enumerate(arrivals):
        _step_until(lab, tally, began, at)
        tally.arrived_s[f"r{number}"] = time.monotonic() - began
        lab.core.add(_request(number, text, mode, load))
    _step_until(lab, tally, began, None)
    seconds = time.monotonic() - began - arrivals[0]
    return Served(
        mode=mode.name,
        tokens_per_s=tally.num_tokens / seconds,
        tokens_per_cpu_s=tally.num_tokens / (time.process_time() - cpu_began),
        at_once=tally.running_seconds / seconds,
        first_token_s=median(tally.waits_s.values()),
        preemptions=lab.core.stats().preemptions_total,
        seconds=seconds,
    )


def _step_until(lab: Lab, tally: _Tally, began: float, until: float | None) -> None:
    """Step while there is work, or until a moment; an idle engine sleeps up to it."""
    while (now := time.monotonic() - began) < (float("inf") if until is None else until):
        if not lab.core.has_work:
            if until is None:
                return
            time.sleep(until - now)
            continue
        emissions = lab.core.step()
        after = time.monotonic() - began
        tally.running_seconds += lab.core.scheduler.stats().running * (after - now)
        for request_id, output in emissions:
            if output.finish_reason is FinishReason.ERROR:
                raise ValueError(f"request {request_id} failed: {output.error}")
            tally.num_tokens += len(output.token_ids)
            tally.waits_s.setdefault(request_id, after - tally.arrived_s[request_id])
            if output.finish_reason is not None:
                lab.executor.forget(request_id)


def _arrivals(load: Load) -> list[float]:
    """Seconds, the first one 0; the same for every mode."""
    generator, at, moments = random.Random(load.seed), 0.0, list[float]()
    for _ in range(load.num_requests):
        moments.append(at)
        at += generator.expovariate(load.per_second)
    return moments


def _request(number: int, text: Sequence[int], mode: Mode, load: Load) -> Request:
    """A prompt of its own from the text."""
    start = number * load.num_prompt % max(1, len(text) - load.num_prompt)
    return Request(
        request_id=f"r{number}",
        prompt_token_ids=text[start : start + load.num_prompt],
        sampling=SamplingParams(temperature=0.0, max_tokens=load.num_answer, ignore_eos=True),
        precision=mode.precision,
    )
