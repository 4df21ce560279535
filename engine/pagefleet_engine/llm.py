"""The engine without a server: prompts in, completions out, in one call that blocks.

The same core as behind HTTP, so batching, sealing and preemption are the same.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TextIO

from pagefleet_engine.api import Tokenizer, TokenLogprobs, TokenOutput
from pagefleet_engine.contract.arguments import EngineArguments
from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.core import EngineCore
from pagefleet_engine.errors import QueueFull
from pagefleet_engine.request import FinishReason, Request, SamplingParams, nth_seed
from pagefleet_engine.server.stopping import StopStrings
from pagefleet_engine.server.structured_offline import OfflineForm, OfflineForms

Prompt = str | Sequence[int]
"""Text, or the token ids of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer to a prompt."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A prompt and its `n` answers."""

    prompt_token_ids: tuple[int, ...]
    choices: tuple[Choice, ...]
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """One per prompt token, where they were asked for; the first token has none."""

    @property
    def text(self) -> str:
        """The first answer."""
        return self.choices[0].text


class LLM:
    """A loaded model. Not thread-safe; one call at a time.

    `settings` are the fields of `EngineArguments`, the flags of `pagefleet-engine`. Raises `StartupError` as the
    server would.
    """

    def __init__(self, model: str, **settings: Any) -> None:
        from pagefleet_engine.startup import build_core

        arguments = EngineArguments(model=model, **settings)
        built = build_core(arguments)
        self._drive(built.core, built.tokenizer, arguments.kv_cache_dtype)

    @classmethod
    def over(cls, core: EngineCore, tokenizer: Tokenizer, precision: Precision = Precision.BF16) -> LLM:
        """Drive a core that exists already."""
        made = cls.__new__(cls)
        made._drive(core, tokenizer, precision)
        return made

    def _drive(self, core: EngineCore, tokenizer: Tokenizer, precision: Precision) -> None:
        self._core = core
        self.tokenizer = tokenizer
        self._precision = precision
        self._forms = OfflineForms(tokenizer)
        self._num_requests = 0

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        progress: bool = True,
    ) -> list[Completion]:
        """Complete every prompt, in the order given.

        Raises `RequestRefused` for a prompt that can never fit and for `structured_outputs` that are refused, before
        anything runs. A request that fails by itself has a choice with `error`.
        """
        params = params or SamplingParams()
        form = self._forms.compile(params.structured_outputs)
        batch = [self._running(prompt, params, form) for prompt in as_list(prompts)]
        answers = {answer.request.request_id: answer for one in batch for answer in one}
        self._run(answers, Progress(len(answers), sys.stderr, enabled=progress))
        return [
            Completion(
                prompt_token_ids=tuple(one[0].request.prompt_token_ids),
                choices=tuple(answer.choice(params.logprobs) for answer in best(one, params)),
                prompt_logprobs=one[0].prompt_logprobs,
            )
            for one in batch
        ]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        params: SamplingParams | None = None,
        *,
        progress: bool = True,
    ) -> list[Completion]:
        """Answer one dialogue, or several, through the model's chat template."""
        dialogues: Iterable[Any] = [messages] if messages and isinstance(messages[0], Mapping) else messages
        prompts = [self.tokenizer.apply_chat_template(dialogue) for dialogue in dialogues]
        ids = [self.tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
        return self.generate(ids, params, progress=progress)

    def _running(self, prompt: Prompt, params: SamplingParams, form: OfflineForm) -> list[_Answer]:
        """One request per choice to make; the later ones share the first one's frames."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        answers: list[_Answer] = []
        logprobs = 0 if params.best_of is not None and params.logprobs is None else params.logprobs
        for index in range(params.best_of or params.n):
            seed = None if params.seed is None else nth_seed(params.seed, index)
            prompt_logprobs = None if answers else params.prompt_logprobs
            sampling = replace(params, n=1, best_of=None, seed=seed, logprobs=logprobs, prompt_logprobs=prompt_logprobs)
            request = Request(
                request_id=f"offline-{self._num_requests}",
                prompt_token_ids=ids,
                sampling=sampling,
                precision=self._precision,
                constraint=form.constraint(),
                fork_of=answers[0].request.request_id if answers else None,
            )
            self._num_requests += 1
            answers.append(_Answer(request, self.tokenizer))
        return answers

    def _run(self, answers: dict[str, _Answer], progress: Progress) -> None:
        coming = deque(answer.request for answer in answers.values())
        for request in coming:
            self._core.check(request)
        try:
            while coming or self._core.has_work:
                self._add_from(coming)
                for request_id, output in self._core.step():
                    answer = answers[request_id]
                    if answer.take(output):
                        self._core.abort(request_id)
                    if answer.ended:
                        progress.advance(len(answer.token_ids))
        finally:
            for request_id in answers:
                self._core.abort(request_id)
            progress.close()

    def _add_from(self, coming: deque[Request]) -> None:
        """Queue as many as there is place for; the others come after a step. A fork of what has ended runs alone."""
        while coming:
            try:
                self._core.add(coming[0])
            except QueueFull:
                return
            coming.popleft()


@dataclass(slots=True)
class _Answer:
    """One choice while it grows."""

    request: Request
    tokenizer: Tokenizer
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str | None = None
    _detokenizer: Any = None
    _stops: Any = None

    def __post_init__(self) -> None:
        self._detokenizer = self.tokenizer.detokenizer()
        self._stops = StopStrings(self.request.sampling.stop)

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None

    def take(self, output: TokenOutput) -> bool:
        """Add what a step brought. True when a stop string has ended the answer and the request should go."""
        if self.ended:
            return False
        self.token_ids.extend(output.token_ids)
        self.logprobs.extend(output.logprobs or ())
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = (None, *output.prompt_logprobs.entries())
        self.error = output.error
        piece = self._detokenizer.push(output.token_ids)
        if output.finish_reason is not None:
            piece += self._detokenizer.flush()
        cut = self._stops.push(piece)
        self.text += cut.text
        if cut.matched is not None:
            self.finish_reason = FinishReason.STOP
            return output.finish_reason is None
        if output.finish_reason is not None:
            self.text += self._stops.flush()
            self.finish_reason = output.finish_reason
        return False

    @property
    def mean_logprob(self) -> float:
        """Of its tokens; an empty answer is worse than any other."""
        if not self.logprobs:
            return float("-inf")
        return sum(entry.logprob for entry in self.logprobs) / len(self.logprobs)

    def choice(self, logprobs: int | None) -> Choice:
        return Choice(
            text=self.text,
            token_ids=tuple(self.token_ids),
            finish_reason=self.finish_reason or FinishReason.ABORT,
            logprobs=None if logprobs is None else tuple(self.logprobs),
            error=self.error,
        )


def best(answers: list[_Answer], params: SamplingParams) -> list[_Answer]:
    """With `best_of`, the `n` answers with the best mean log probability, best first; else all of them."""
    if params.best_of is None:
        return answers
    return sorted(answers, key=lambda answer: -answer.mean_logprob)[: params.n]


class Progress:
    """One line on a terminal that says how many requests have ended; silent elsewhere."""

    def __init__(self, total: int, stream: TextIO, *, enabled: bool) -> None:
        self._total, self._stream = total, stream
        self._enabled = enabled and stream.isatty()
        self._ended = self._tokens = 0

    def advance(self, num_tokens: int) -> None:
        self._ended += 1
        self._tokens += num_tokens
        if self._enabled:
            self._stream.write(f"\r{self._ended} of {self._total} requests, {self._tokens} tokens")
            self._stream.flush()

    def close(self) -> None:
        if self._enabled and self._ended:
            self._stream.write("\n")


def as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt, text or ids, as a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [[int(token) for token in prompts if isinstance(token, int)]]
    return [prompt for prompt in prompts if not isinstance(prompt, int)]
