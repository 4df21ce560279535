"""The requests that an engine answers before it says that it is ready, so that no client pays for what happens once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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

    Alone in their steps they run every kernel of their precision. Steps of several precisions compile the forms
    that merge when they first come.
    """
    for precision in precisions:
        length = min(2 * sizes.lengths[precision] - _ANSWER // 2, max_model_len - _ANSWER)
        yield _request(f"warm-up-{precision}", max(1, length), _ANSWER, precision)


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
