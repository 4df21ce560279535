"""The engine's tokens on a GPU against those of its CPU path: same weights, all precisions, a pool too small for them.

The first thing that `check_gpu.py` does with the engine: it runs the streams, the pinned memory and the graphs that no
CPU has. Weights are bf16, so where two tokens are nearly equally likely the two may choose differently, and what
follows is another text. Such a place must be a tie by the CPU's own log probabilities; then the GPU is asked again for
the rest, after the CPU's tokens up to there. So nearly all positions are compared, however early the first tie is.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from check_engine import Setup, backend_of, make_core, random_decoder
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.core import EngineCore
from pagefleet_engine.layers.rope import RotaryTable
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.runtime.backend import CPU
from pagefleet_engine.runtime.cuda import GraphCapture
from pagefleet_engine.runtime.graphs import RunAgain
from pagefleet_kernels.bench.case import Case

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
ROUNDS = 12
"""How often the GPU is asked, at most. Two CPU paths with the same weights need 5 for `BIG`."""
LEAST_COMPARED = 0.8
"""Of all positions. A GPU that is right falls below only by more ties than `ROUNDS` in several answers."""
_ALTERNATIVES = 8


class Chosen(NamedTuple):
    """A token, its log probability, and those of the most likely ones."""

    token: int
    logprob: float
    top: dict[int, float]


Answers = dict[str, list[Chosen]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked; the answer is greedy."""

    name: str
    prompt: list[int]
    answer: int
    precision: Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is asked of one request after the other."""

    prompt: int
    answer: int
    num_frames: int
    at_once: int


BIG = Size(prompt=150, answer=100, num_frames=70, at_once=64)


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
        return replace(value, **fields)  # type: ignore[type-var]
    return value


def questions(size: Size, precisions: Sequence[Precision]) -> list[Question]:
    """Two for each precision, of different lengths."""
    return [
        Question(
            name=f"{index}",
            prompt=[(97 * index + 7 * i * i + 3 * i) % 256 for i in range(size.prompt + 5 * index)],
            answer=size.answer,
            precision=precisions[index % len(precisions)],
        )
        for index in range(2 * len(precisions))
    ]


def answers_of(core: EngineCore, asked: Sequence[Question], suffix: str = "") -> Answers:
    """What a core answers them, all at once. Raises AssertionError where it ends one with an error."""
    for question in asked:
        sampling = SamplingParams(temperature=0.0, max_tokens=question.answer, ignore_eos=True, logprobs=_ALTERNATIVES)
        request_id = question.name + suffix
        core.add(
            Request(
                request_id=request_id, prompt_token_ids=question.prompt, sampling=sampling, precision=question.precision
            )
        )
    found: Answers = {question.name: [] for question in asked}
    while core.has_work:
        for name, output in core.step():
            if output.error is not None:
                raise AssertionError(f"request {name}: {output.error}")
            entries = output.logprobs or ()
            found[name.removesuffix(suffix)].extend(Chosen(e.token_id, e.logprob, dict(e.top)) for e in entries)
    return found


@dataclass(slots=True)
class Comparison:
    """What the positions compared so far have shown."""

    compared: int = 0
    ties: int = 0
    worst: float = 0.0

    def common(self, name: str, want: Sequence[Chosen], got: Sequence[Chosen]) -> int:
        """Compare two answers to the same prompt up to their first different token, that one included.

        Returns how many positions that is. Raises AssertionError where log probabilities are further apart than
        `TOLERANCE`, or tokens differ that are no tie: each side may be off by it.
        """
        for index, (mine, theirs) in enumerate(zip(want, got, strict=True)):
            here = mine.top.get(theirs.token, mine.logprob if mine.token == theirs.token else -math.inf)
            if mine.logprob - here > 2 * TOLERANCE:
                gap = f"{mine.logprob - here:.3f} less likely"
                raise AssertionError(f"request {name}: token {theirs.token} for {mine.token}, {gap} on the CPU")
            difference = abs(theirs.logprob - here)
            if not difference <= TOLERANCE:  # a NaN is not, either
                raise AssertionError(
                    f"request {name}: log probabilities differ by {difference:.3f}, allowed {TOLERANCE}"
                )
            self.worst = max(self.worst, difference)
            self.compared += 1
            if mine.token != theirs.token:
                self.ties += 1
                return index + 1
        return len(want)


def compare(want: Answers, asked: Sequence[Question], ask: Callable[[Sequence[Question]], Answers]) -> Comparison:
    """Ask, compare, and ask for what follows each tie, until all positions are compared or `ROUNDS` are over.

    Raises AssertionError also where fewer than `LEAST_COMPARED` of the positions are compared.
    """
    result, open_questions = Comparison(), list(asked)
    for _ in range(ROUNDS):
        if not open_questions:
            break
        got, following = ask(open_questions), []
        for question in open_questions:
            answer = want[question.name]
            rest = answer[len(answer) - question.answer :]
            count = result.common(question.name, rest, got[question.name])
            if count < len(rest):
                prompt = question.prompt + [chosen.token for chosen in rest[:count]]
                following.append(replace(question, prompt=prompt, answer=len(rest) - count))
        open_questions = following
    total = sum(map(len, want.values()))
    if result.compared < LEAST_COMPARED * total:
        raise AssertionError(f"{result.compared} of {total} tokens compared: tokens keep differing")
    return result


def tokens_case(small: bool, size: Size, precisions: Sequence[Precision]) -> dict[str, Any]:
    """Compare the GPU's backend with the CPU's (a dry run: its paged form). Raises AssertionError as `compare` does.

    With all precisions also where nothing was swapped: `size` is chosen so that something must be.
    """
    torch.manual_seed(7)
    decoder, backend = random_decoder(MODEL, torch.device("cpu"), scaled=True), backend_of(small)
    here = Setup(
        decoder=decoder, backend=CPU, capture=RunAgain, num_frames=size.num_frames, num_seqs=size.at_once, budget=64
    )
    there = replace(
        here,
        decoder=moved(decoder, backend.device()),
        backend=backend,
        capture=RunAgain if small else GraphCapture,
    )
    asked = questions(size, precisions)
    want = answers_of(make_core(here, graphs=True, num_host_frames=size.num_frames)[0], asked)
    core, executor = make_core(there, graphs=True, num_host_frames=size.num_frames)
    turn = itertools.count()
    result = compare(want, asked, lambda them: answers_of(core, them, f".{next(turn)}"))
    swaps = core.stats().swaps_total
    if not swaps and len(precisions) == len(Precision):
        raise AssertionError("nothing was swapped, so nothing was shown of swaps: take a smaller pool")
    return {
        "precisions": " ".join(precisions),
        "tokens": sum(map(len, want.values())),
        "compared": result.compared,
        "ties": result.ties,
        "rounds": next(turn),
        "largest_difference": round(result.worst, 4),
        "swaps": swaps,
        "steps": len(executor.device_s),
    }


def cases(small: bool) -> list[Case]:
    """Each precision by itself, so that their kernels are compiled side by side; then all together."""
    size = Size(prompt=20, answer=12, num_frames=7, at_once=2) if small else BIG
    found = [] if small else [(f"{precision} alone", [precision]) for precision in Precision]
    found.append(("all precisions", list(Precision)))
    return [Case("tokens", name, partial(tokens_case, small, size, asked), limit_s=150.0) for name, asked in found]
