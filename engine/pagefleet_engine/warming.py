"""The requests that an engine answers before it says that it is ready, so that no client pays for what happens once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.core import EngineCore
from pagefleet_engine.errors import StartupError
from pagefleet_engine.request import FinishReason, Request, SamplingParams

_ANSWER = 6
"""Tokens of an answer that compiles: the third decode step is the first that can be replayed."""


def one_token() -> Request:
    """All there is to warm up where nothing is compiled."""
    return _request("warm-up", 1, 1, Precision.BF16)


def compiling(precisions: Iterable[Precision], sizes: GroupSizes, max_model_len: int) -> Iterator[Request]:
    """One request for each precision whose prompt and whose answer both complete a group, where the length allows it.

    They run what `runtime.warming` does not compile: matrix products, elementwise kernels, sampling, a first graph.
    """
    for precision in precisions:
        length = min(2 * sizes.lengths[precision] - _ANSWER // 2, max_model_len - _ANSWER)
        yield _request(f"warm-up-{precision}", max(1, length), _ANSWER, precision)


def precisions_to_compile(
    used: Collection[Precision], *, demotes: bool, without: Collection[Precision]
) -> tuple[Precision, ...]:
    """Precisions that frames can be in from the start: those of requests, and the one that BF16 is demoted to.

    Routes that come later with another precision have it compiled by the first step that meets it.
    """
    frames = {*used, Precision.FP8_E4M3} if demotes and Precision.BF16 in used else set(used)
    return tuple(sorted(frames - set(without)))


def warm_up(core: EngineCore, requests: Sequence[Request] = ()) -> None:
    """Answer them one after the other, or one token where there are none. Raises `StartupError`."""
    for request in requests or [one_token()]:
        core.add(request)
        outputs = []
        while core.has_work:
            outputs += [emission.output for emission in core.step()]
        if not outputs or outputs[-1].finish_reason is not FinishReason.LENGTH:
            error = outputs[-1].error if outputs else "no token"
            raise StartupError(f"the model cannot answer a single token ({error}): the weights are damaged")


def _request(name: str, length: int, answer: int, precision: Precision) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=[0] * length, sampling=sampling, precision=precision)
