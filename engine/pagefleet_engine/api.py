"""What the server sees of the engine: one Protocol and the values that cross it.

No torch here, and no HTTP. `pagefleet_engine.async_engine.start_engine` returns the real thing; tests of the server
may use any other implementation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from pagefleet_engine.contract.precision import Precision

if TYPE_CHECKING:
    from pagefleet_engine.prompt_logprobs import PromptLogprobs
    from pagefleet_engine.request import FinishReason, SamplingParams
    from pagefleet_engine.structured.constraint import Constraint


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Log probabilities at one position, in the model's own distribution: before temperature and penalties."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most likely tokens with their log probabilities, best first; as many as the request asked for."""
    rank: int | None = None
    """Of prompt tokens only: how many tokens are at least as likely, itself included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutput:
    """What one request got since its last output. The last one carries `finish_reason`."""

    token_ids: tuple[int, ...]
    """New tokens only. The end-of-sequence or stop token that ended the request is not among them."""
    finish_reason: FinishReason | None
    num_prompt_tokens: int
    num_cached_tokens: int
    """Prompt tokens that the prefix cache held."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One per token in `token_ids`; None when the request asked for none."""
    stop_token_id: int | None = None
    """The end-of-sequence or stop token that ended the request, which is not among `token_ids`."""
    stop_logprobs: TokenLogprobs | None = None
    """Those of the stop token that ended the request, which is not among `token_ids`."""
    prompt_logprobs: PromptLogprobs | None = None
    """Those of the whole prompt, once, with the first output of a request that asked for them."""
    error: str | None = None
    """One line, set only when the request ended by an error of its own."""
    is_client_error: bool = False
    """That error is one of the request, and not of the model: its constraint leaves no token, or costs too much."""
    mixed: bool = False
    """Its KV is in more than one precision so far, so its verdict is not compared."""

    @staticmethod
    def empty(*, num_prompt_tokens: int) -> TokenOutput:
        """Nothing yet, but the request is in the queue."""
        return TokenOutput(token_ids=(), finish_reason=None, num_prompt_tokens=num_prompt_tokens, num_cached_tokens=0)

    @property
    def is_empty(self) -> bool:
        """It only says that the request is in the queue."""
        return not self.token_ids and self.finish_reason is None and self.prompt_logprobs is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a client may need to know of the model."""

    id: str
    max_model_len: int
    vocab_size: int
    """Width of the logits; every token id in a request must be below it."""
    eos_token_ids: tuple[int, ...]
    precision: Precision = Precision.BF16
    """Of the sealed frames of requests that ask for none."""
    longest_kv: Mapping[Precision, int] | None = None
    """Precisions that the engine can keep KV in, and how many tokens of one request the whole pool holds in each;
    None: all of them, at any length."""
    attention_backend: str = "reference"
    """What computes attention: triton or reference."""
    device: str = "cpu"
    """Name of the device that the model runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """One consistent look at the engine, taken between two steps. Shares are 0..1."""

    running: int
    waiting: int
    swapped: int
    kv_usage: float
    """Frames that requests hold, as a share of the pool."""
    cpu_kv_usage: float
    cap: int
    capacity: int
    max_model_len: int
    frames: Mapping[str, int] = field(default_factory=dict)
    """Frames by state: free, open, sealed, in_transfer. Their sum is the size of the pool."""
    sealed_frames: Mapping[str, int] = field(default_factory=dict)
    """Sealed frames by precision; cached ones that nobody holds are among them."""
    preemptions_total: int = 0
    swaps_total: int = 0
    """Preempted requests whose frames were moved to host memory."""
    resumes_total: int = 0
    """Swapped requests whose frames were brought back."""
    recomputes_total: int = 0
    """Preempted requests whose KV was dropped."""
    evicted_frames_total: int = 0
    demoted_frames_total: int = 0
    """BF16 frames that became part of an FP8 frame."""
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    """In both tiers."""
    prefix_host_hit_tokens_total: int = 0
    """Of these, the ones whose frames came back from host memory."""
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    failed_requests_total: int = 0
    """Requests that ended by an error of their own, for example NaN in their logits."""
    step_counter: int = 0
    last_step_monotonic_s: float = 0.0
    """`time.monotonic()` at the end of the last step; health by progress compares it while `has_work`."""
    has_work: bool = False
    fatal: str | None = None
    """One line, set once the step loop has died; the process has to exit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSettings:
    """What can be changed on a running engine. Each is at most what the engine was started with."""

    cap: int
    """Most requests that may run at once. Lowering it aborts nobody."""
    max_model_len: int
    """Longest prompt plus answer of requests that arrive from now on, in tokens."""
    max_num_batched_tokens: int
    """Token budget of one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOptions:
    """How the engine treats one request, besides what it samples."""

    precision: Precision | None = None
    """Of its sealed frames; None takes the engine's."""
    priority: int = 0
    """Lower is served earlier, -100..100."""
    cache_salt: str = ""
    """Requests share prefix frames only under the same salt."""
    allow_demotion: bool = False
    """Its sealed BF16 frames may become FP8 under pressure."""
    fork_of: str | None = None
    """Id of a request with the same beginning, whose frames it shares where it can. Purely a saving."""
    keep_frames: bool = False
    """When it ends, its frames stay for forks until somebody calls `abort` with its id."""
    constraint: Constraint | None = None
    """Limits which tokens may follow each other. Belongs to this one request."""


PLAIN: Final = RequestOptions()


class Detokenizer(Protocol):
    """Turns one request's tokens into text, piece by piece, never emitting half a character."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete; may be empty."""
        ...

    def flush(self) -> str:
        """What is still held back, at the end of the request; incomplete bytes become U+FFFD."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back. Every method may be called from any thread."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    special_token_ids: frozenset[int]
    """Control tokens, which no text contains."""
    template_takes_tools: bool
    """The chat template shows tools, tool calls and their results by itself."""
    template_source: str
    """The chat template as it came with the model; empty where it has none."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str:
        """One token as text, for logprobs; bytes that are no character become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token, for logprobs."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        longest: int | None = None,
    ) -> str:
        """The prompt text. Raises `RequestRefused` when the model has no template or the template refuses.

        `variables` are more names for the template. A text longer than `longest` characters may not be all of it.
        """
        ...

    def detokenizer(self, *, skip_special_tokens: bool = True) -> Detokenizer: ...


class Engine(Protocol):
    """A running engine. All methods belong to the event loop's thread; none blocks it."""

    @property
    def model_info(self) -> ModelInfo: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def generate(
        self, request_id: str, prompt_ids: Sequence[int], params: SamplingParams, options: RequestOptions = PLAIN
    ) -> AsyncGenerator[TokenOutput, None]:
        """Outputs of one request as they come. The last one has a `finish_reason`.

        Once the request is in the queue there is an empty one, unless tokens come as soon.

        Raises `RequestRefused`, `QueueFull` or `EngineDead` before the first output. `aclose()` aborts the
        request.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request in whatever state it is; unknown ids are ignored. Its iterator ends with `abort`."""
        ...

    def stats(self) -> EngineStats: ...

    async def configure(self, settings: RuntimeSettings) -> None:
        """Change the settings between two steps; returns when they are in force.

        Raises `ValueError`, with nothing changed, for one out of range, and `EngineDead`.
        """
        ...

    async def close(self) -> None:
        """Abort what runs, end the step loop, free the memory. Idempotent."""
        ...
