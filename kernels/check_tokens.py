"""The engine's tokens on a GPU against those of its CPU path: same weights, all precisions, a pool too small for them.

The first thing that `check_gpu.py` does with the engine: it runs the streams, the pinned memory and the graphs that no
CPU has. Weights are bf16, so where two tokens are nearly equally likely the two may choose differently; what follows
such a place is not compared.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch

from check_engine import Setup, make_core, random_decoder
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.layers.rope import RotaryTable
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.runtime.backend import CPU

MODEL = ModelConfig(
    architecture="llama",
    num_layers=2,
    hidden_size=96,
    num_heads=6,
    num_kv_heads=2,
    head_dim=64,
    intermediate_size=128,
    vocab_size=260,
    context_len=512,
    rope_base=10_000.0,
    norm_eps=1e-5,
    tied_embeddings=False,
)
TOLERANCE = 0.15
"""Of log probabilities: bf16 activations, and FP8 codes on either side of a tie."""

Answers = dict[str, list[tuple[int, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is asked of one request after the other."""

    prompt: int
    answer: int
    num_frames: int


BIG = Size(prompt=150, answer=100, num_frames=70)


def moved(value: Any, device: torch.device) -> Any:
    """A decoder, or a part of one, with its tensors on another device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(moved(part, device) for part in value)
    if isinstance(value, RotaryTable):
        return RotaryTable(MODEL, MODEL.context_len, device)
    if dataclasses.is_dataclass(value) and not isinstance(value, ModelConfig):
        fields = {field.name: moved(getattr(value, field.name), device) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)  # type: ignore[type-var]
    return value


def answers_of(setup: Setup, size: Size) -> tuple[Answers, dict[str, int]]:
    """What two requests of each precision are answered, and what happened on the way."""
    core, executor = make_core(setup, graphs=True, num_host_frames=size.num_frames)
    sampling = SamplingParams(temperature=0.0, max_tokens=size.answer, ignore_eos=True, logprobs=0)
    for index in range(2 * len(Precision)):
        prompt = [(97 * index + 7 * i * i + 3 * i) % 256 for i in range(size.prompt + 5 * index)]
        precision = list(Precision)[index % len(Precision)]
        core.add(Request(request_id=f"{index}", prompt_token_ids=prompt, sampling=sampling, precision=precision))
    found: Answers = {}
    while core.has_work:
        for name, output in core.step():
            if output.error is not None:
                raise AssertionError(f"request {name}: {output.error}")
            found.setdefault(name, []).extend((entry.token_id, entry.logprob) for entry in output.logprobs or ())
    return found, {"swaps": core.stats().swaps_total, "steps": len(executor.device_s)}


def tokens_case(setup: Setup, size: Size) -> dict[str, Any]:
    """Compare `setup`'s backend with the CPU's. Raises AssertionError beyond `TOLERANCE`."""
    torch.manual_seed(7)
    decoder = random_decoder(MODEL, torch.device("cpu"), scaled=True)
    small = dataclasses.replace(setup, num_frames=size.num_frames, budget=64)
    there = dataclasses.replace(small, decoder=moved(decoder, setup.backend.device()))
    here = dataclasses.replace(small, decoder=decoder, backend=CPU)
    got, counts = answers_of(there, size)
    want, _ = answers_of(here, size)
    compared, worst = 0, 0.0
    for name, answer in want.items():
        for (token, logprob), (other, other_logprob) in zip(answer, got[name], strict=True):
            worst = max(worst, abs(logprob - other_logprob))
            if token != other:
                break
            compared += 1
    if worst > TOLERANCE:
        raise AssertionError(f"log probabilities differ by {worst:.3f}, allowed {TOLERANCE}")
    if not counts["swaps"]:
        raise AssertionError("nothing was swapped, so nothing was shown of swaps: take a smaller pool")
    total = sum(map(len, want.values()))
    return {"tokens": total, "compared": compared, "largest_difference": round(worst, 4), **counts}
