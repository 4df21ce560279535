"""Tokenising and chat templates, off the event loop: long texts take long and must not hold up anybody's stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pagefleet_engine.errors import RequestRefused
from pagefleet_engine.server.errors import ApiError, invalid, queue_full
from pagefleet_engine.server.failures import refuse_failed_work
from pagefleet_engine.server.limits import Limits
from pagefleet_engine.server.work import NoThreadFree, TooSlow, WorkPool

T = TypeVar("T")


class TextWorkers:
    """A few threads with a bounded queue before them and a time limit on each piece of work."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pool = WorkPool(limits.tokenizer_threads, "text")
        self._waiting = 0

    async def run(self, work: Callable[[], T], *, param: str) -> T:
        """Result of `work`. Raises `ApiError` when it refuses, takes too long, or too many wait."""
        limits = self._limits
        if self._waiting >= limits.tokenizer_queue:
            raise queue_full("too many prompts wait to be tokenised: try again", 1.0)
        self._waiting += 1
        running = self._pool.submit(work)
        try:
            return await running.result(wait_s=limits.thread_timeout_s, work_s=limits.template_timeout_s)
        except NoThreadFree:
            raise queue_full("other prompts take long to be tokenised: try again", 1.0) from None
        except TooSlow:
            message = f"{param}: takes longer than {limits.template_timeout_s:g} s to tokenise; shorten it"
            raise invalid(message, param=param) from None
        except RequestRefused as refusal:
            raise invalid(str(refusal), param=refusal.param or param) from None
        except ApiError:
            raise
        except Exception as error:
            raise refuse_failed_work(error, param=param) from None
        finally:
            running.drop()
            self._waiting -= 1

    def longest(self, max_model_len: int) -> int:
        """Characters of the longest text that is tokenised."""
        return max_model_len * self._limits.chars_per_token

    def check_length(self, text: str, max_model_len: int, *, param: str) -> None:
        """Refuse text that cannot fit before spending time on it."""
        longest = self.longest(max_model_len)
        if len(text) > longest:
            message = (
                f"the prompt is too long: the maximum context length is {max_model_len} tokens, and {param} has "
                f"{len(text)} characters: more than {longest} cannot fit; shorten it"
            )
            raise invalid(message, param=param, code="context_length_exceeded")

    def close(self) -> None:
        """End the threads once their present work is done; what waits is dropped."""
        self._pool.close()
