"""Which requests can be served at all, decided before they wait."""

from __future__ import annotations

from pagefleet_engine.contract.kv import GroupSizes
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.request import Request
from pagefleet_engine.scheduling.config import SchedulerConfig


class RequestTooLong(RequestRefused):
    """The request can never fit: into the context, or into the whole pool. All counts are tokens or frames."""

    def __init__(self, message: str, *, param: str, needed: int, limit: int) -> None:
        super().__init__(message, param=param)
        self.needed = needed
        self.limit = limit


class WaitingQueueFull(Exception):
    """As much waits as may; the caller knows the clock and says when to come back."""

    def __init__(self, message: str, *, num_waiting: int) -> None:
        super().__init__(message)
        self.num_waiting = num_waiting


def check_queue(num_waiting: int, num_tokens: int, num_new_tokens: int, config: SchedulerConfig) -> None:
    """Raises `WaitingQueueFull` when one prompt more is too much.

    An empty queue takes any prompt, however long: else one that is longer than the limit could never be served.
    """
    if num_waiting >= config.max_num_queued:
        raise WaitingQueueFull(f"{num_waiting} requests are waiting already", num_waiting=num_waiting)
    most = config.max_num_queued_tokens
    if most is not None and num_tokens and num_tokens + num_new_tokens > most:
        raise WaitingQueueFull(
            f"prompts of {num_tokens} tokens are waiting already, and {most} may wait", num_waiting=num_waiting
        )


def longest_total(request: Request, *, max_model_len: int, num_frames: int, sizes: GroupSizes) -> int:
    """Tokens of prompt plus longest answer. Raises `RequestTooLong` when they can never fit.

    Without `max_tokens` the answer may fill the context, or the pool where that is smaller.
    """
    num_prompt, max_tokens = request.num_prompt_tokens, request.sampling.max_tokens
    if not num_prompt:
        raise RequestRefused("the prompt is empty: send at least one token", param="prompt")
    total = num_prompt + (max_tokens if max_tokens is not None else 1)
    if total > max_model_len:
        raise RequestTooLong(
            f"this engine's context is {max_model_len} tokens, but {num_prompt} in the prompt and "
            f"{total - num_prompt} in the answer make {total}: shorten the prompt or lower max_tokens",
            param="prompt" if num_prompt >= max_model_len else "max_tokens",
            needed=total,
            limit=max_model_len,
        )
    _check_pool(max(total, num_prompt + 1), request.precision, num_frames, sizes)
    if max_tokens is not None:
        return total
    # The KV of the last token is never computed.
    return min(max_model_len, sizes.longest(num_frames, request.precision) + 1)


def _check_pool(total: int, precision: Precision, num_frames: int, sizes: GroupSizes) -> None:
    needed = sizes.peak_frames(total - 1, precision)
    if needed > num_frames:
        raise RequestTooLong(
            f"{total} tokens in {precision} need {needed} frames of KV cache, but the whole pool has {num_frames}, "
            f"enough for {sizes.longest(num_frames, precision) + 1} tokens: shorten the prompt or lower max_tokens",
            param="prompt",
            needed=needed,
            limit=num_frames,
        )


def check_precision_fits(request: Request, precision: Precision, *, num_frames: int, sizes: GroupSizes) -> None:
    """Raises `RequestTooLong` when the rest of a request, in another precision, would not fit into the whole pool."""
    begun = request.table.num_groups_begun(sizes.lengths)
    rest = max(request.max_total_tokens - 1, request.num_prompt_tokens) - request.table.begun_until
    needed = begun + (sizes.peak_frames(rest, precision) if rest > 0 else 0)
    if needed > num_frames:
        raise RequestTooLong(
            f"request {request.request_id} would need {needed} frames of KV cache in {precision}, "
            f"but the whole pool has {num_frames}: it stays in {request.precision}",
            param="precision",
            needed=needed,
            limit=num_frames,
        )
