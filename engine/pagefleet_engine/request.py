"""A request as the scheduler sees it: what to sample, and how far it has come.

No tokenizer, no clock and no torch. Text (stop strings, detokenising) belongs to the server.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.memory.table import FrameTable

if TYPE_CHECKING:
    from pagefleet_engine.structured.constraint import Constraint


class SamplingError(ValueError):
    """A sampling parameter out of range; `param` is the name that the client used for it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param} {message}")
        self.param = param


class FinishReason(StrEnum):
    """Why a request has ended."""

    STOP = "stop"
    """A stop token, the end-of-sequence token, or a stop string found by the server."""
    LENGTH = "length"
    """`max_tokens` or the context length is reached."""
    ABORT = "abort"
    """The client left or the engine drained."""
    ERROR = "error"
    """The request itself failed, for example by NaN in its logits."""


class RequestState(StrEnum):
    """Where a request is. WAITING → RUNNING → FINISHED, with SWAPPED or WAITING again after a preemption."""

    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"
    PARKED = "parked"
    """Ended, but its frames are kept for forks until it is released."""
    FINISHED = "finished"


# (field, lowest, highest)
_BOUNDS: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0.0, 100.0),
    ("top_k", 1, 2**31),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 0.01, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("seed", -(2**63), 2**63 - 1),
    ("logprobs", 0, 1024),
    ("prompt_logprobs", 0, 1024),
    ("max_tokens", 0, 2**31),
    ("min_tokens", 0, 2**31),
    ("n", 1, 128),
    ("best_of", 1, 128),
)


def nth_seed(seed: int, index: int) -> int:
    """The seed of choice `index`: the next ones in the range of 64 bits, which goes round."""
    return (seed + index + 2**63) % 2**64 - 2**63


LEAST_TEMPERATURE = 1e-5
"""Below it logits divided by the temperature leave the range of fp32 sooner than they could change the choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next tokens of a request are chosen. None switches a parameter off.

    Raises `SamplingError` for a value out of range, NaN included. What depends on the model is checked by
    `check_vocabulary`.
    """

    temperature: float = 1.0
    """0, and what is below `LEAST_TEMPERATURE`, takes the most likely token and uses no random number."""
    top_k: int | None = None
    """Sample among the k most likely tokens only."""
    top_p: float = 1.0
    """Sample among the most likely tokens whose probabilities reach p together; at least one stays."""
    min_p: float = 0.0
    """Leave out tokens less likely than this share of the most likely one."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or answer."""
    presence_penalty: float = 0.0
    """Subtracted once from the logits of tokens seen in the answer."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens in the answer, once per occurrence."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id → value added to its logit, -100..100."""
    seed: int | None = None
    """Seed of this choice; None takes the engine's. Choice i of `n` uses `seed + i`, round the range of 64 bits."""
    logprobs: int | None = None
    """None reports no log probabilities, 0 those of the chosen tokens, k also the k most likely ones."""
    prompt_logprobs: int | None = None
    """As `logprobs`, of every prompt token but the first. The prompt is computed then, whatever a cache holds of it."""
    max_tokens: int | None = None
    """Longest answer in tokens; None runs to the context length, 0 computes the prompt alone."""
    min_tokens: int = 0
    """No stop token ends the answer before it has this many tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the answer, besides the model's end-of-sequence tokens."""
    ignore_eos: bool = False
    """The model's end-of-sequence tokens do not end the answer."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer. The server looks for them; the scheduler does not."""
    structured_outputs: Mapping[str, Any] | None = None
    """Exactly one of `json`, `json_object`, `regex`, `choice`, `grammar`, as in a request over HTTP.

    Only `LLM` reads it: the server compiles what its clients ask for."""
    n: int = 1
    """Choices to return. Whoever makes the requests makes one per choice."""
    best_of: int | None = None
    """Choices to generate, the best `n` of which are returned; None generates `n`."""

    def __post_init__(self) -> None:
        for name, low, high in _BOUNDS:
            _check_range(name, getattr(self, name), low, high)
        if self.top_p == 0.0:
            raise SamplingError("top_p", "0 leaves no token to sample: use temperature 0 for the most likely one")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise SamplingError("min_tokens", f"{self.min_tokens} is above max_tokens {self.max_tokens}")
        if self.best_of is not None and self.best_of < self.n:
            raise SamplingError("best_of", f"{self.best_of} is below n {self.n}")
        for bias in self.logit_bias.values():
            _check_range("logit_bias", bias, -100.0, 100.0)

    @property
    def is_greedy(self) -> bool:
        """The most likely token is taken, whatever the filters say."""
        return self.temperature < LEAST_TEMPERATURE

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises `SamplingError` when a token id is not below `vocab_size`, the width of the logits."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                if not 0 <= token_id < vocab_size:
                    raise SamplingError(name, f"has token id {token_id}: the model's ids are 0 to {vocab_size - 1}")


def _check_range(name: str, value: float | None, low: float, high: float) -> None:
    if value is None:
        return
    if not low <= value <= high or math.isinf(value):
        raise SamplingError(name, f"is {value}: must be {low:.12g} to {high:.12g}")


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One choice of one client request. The fields up to `keep_frames` are the caller's, the rest the scheduler's."""

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    precision: Precision = Precision.BF16
    """Precision of the groups that start from now on."""
    priority: int = 0
    """Lower is served earlier, -100..100."""
    cache_salt: str = ""
    """Requests share prefix frames only under the same salt."""
    adapter: str = ""
    """Adapter that the KV depends on; "" is the bare model."""
    allow_demotion: bool = False
    """Sealed BF16 frames may become FP8 under pressure."""
    constraint: Constraint | None = None
    """For the sampler; the scheduler only carries it."""
    fork_of: str | None = None
    """Id of a request with the same beginning, whose frames this one shares where it can. Purely a saving."""
    keep_frames: bool = False
    """When it ends, park it instead of releasing it, so that forks can share its frames."""

    state: RequestState = RequestState.WAITING
    token_ids: list[int] = field(init=False)
    """Prompt and answer. Append-only."""
    table: FrameTable = field(init=False)
    arrival: int = 0
    """Order of arrival, unique."""
    arrival_step: int = 0
    """Step of the scheduler in which it arrived; priorities age by it."""
    rank: tuple[int, int] = (0, 0)
    """(priority, arrival): smaller is served earlier among the running and preempted later."""
    was_admitted: bool = False
    num_cached_prompt_tokens: int = 0
    """Prompt tokens that it shared with others when it was first admitted."""
    max_total_tokens: int = 0
    """Longest prompt plus answer, fixed on arrival."""
    protected_until_step: int = 0
    """Not preempted before this step, because it has just been resumed."""
    num_scored: int = 0
    """Prompt positions whose logits have given the log probability of the token after them; none gives it twice."""

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_token_ids)
        self.table = FrameTable()

    @property
    def mixed(self) -> bool:
        """Its KV precision changed on the way, so its structured-output verdict is not compared."""
        return self.table.is_mixed

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_ids) - len(self.prompt_token_ids)

    @property
    def num_computed(self) -> int:
        """Tokens whose KV the frames hold."""
        return self.table.num_tokens

    @property
    def num_reusable(self) -> int:
        """How many of its first tokens may lie in frames that others have computed.

        Positions that are still to be scored have to go through the model.
        """
        if self.sampling.prompt_logprobs is None or self.num_scored >= self.num_prompt_tokens - 1:
            return len(self.token_ids)
        return self.num_scored

    def rows_to_score(self, start: int, end: int) -> range:
        """Those of the positions `start` to `end` whose logits are wanted for the prompt token after them."""
        if self.sampling.prompt_logprobs is None:
            return range(0)
        return range(max(start, self.num_scored), min(end, self.num_prompt_tokens - 1))

    @property
    def num_uncomputed(self) -> int:
        """Tokens known but not yet through the model: 1 while decoding."""
        return len(self.token_ids) - self.table.num_tokens
