"""The JSON values that OpenAI's clients expect, for chat and for plain completions. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pagefleet_engine.api import Tokenizer, TokenLogprobs
from pagefleet_engine.prompt_logprobs import PromptLogprobs
from pagefleet_engine.request import FinishReason
from pagefleet_engine.server.answer import Delta
from pagefleet_engine.server.job import Choice, Job
from pagefleet_engine.server.logprob_shapes import CompletionLogprobs, Json, finite, joined, prompt_logprobs
from pagefleet_engine.server.tool_parser import CallPiece


@dataclass(slots=True)
class Tally:
    """Tokens of one job so far."""

    num_prompt_tokens: int
    num_generated: int = 0
    cached_by_choice: dict[int, int] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        self.num_generated += delta.num_tokens
        self.cached_by_choice[delta.index] = delta.num_cached_tokens

    def usage(self) -> Json:
        cached = min(sum(self.cached_by_choice.values()), self.num_prompt_tokens)
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_generated,
            "total_tokens": self.num_prompt_tokens + self.num_generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        }


@dataclass(slots=True)
class Whole:
    """One choice, collected."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    stop_logprobs: TokenLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    calls: list[Json] = field(default_factory=list)
    """As `tool_calls` of a message."""

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        for piece in delta.tool_calls:
            if piece.id is not None:
                function = {"name": piece.name, "arguments": ""}
                self.calls.append({"id": piece.id, "type": "function", "function": function})
            self.calls[piece.index]["function"]["arguments"] += piece.arguments
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        self.stop_logprobs = delta.stop_logprobs
        self.prompt_logprobs = delta.prompt_logprobs if self.prompt_logprobs is None else self.prompt_logprobs
        self.finish_reason = delta.finish_reason
        self.stop_reason = delta.stop_reason


class Shape(Protocol):
    """How one endpoint writes its answers."""

    def opening(self, job: Job) -> list[Json]:
        """Chunks that come before the first token."""
        ...

    def chunk(self, job: Job, delta: Delta) -> Json: ...

    def usage_chunk(self, job: Job, tally: Tally) -> Json: ...

    def response(self, job: Job, wholes: Sequence[Whole], tally: Tally) -> Json: ...


class ChatShape:
    """`chat.completion` and `chat.completion.chunk`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def opening(self, job: Job) -> list[Json]:
        chunks = [self._chunk(job, choice.index, {"role": "assistant", "content": ""}) for choice in job.choices]
        chunks[0] |= _prompt_ids(job, job.choices[0])
        return chunks

    def chunk(self, job: Job, delta: Delta) -> Json:
        content: Json = {}
        if delta.text or not (delta.finish_reason or delta.tool_calls):
            content["content"] = delta.text
        if delta.tool_calls:
            content["tool_calls"] = [_call_piece(piece) for piece in delta.tool_calls]
        logprobs = self._logprobs(delta.logprobs) if delta.logprobs else None
        reason = _finish_reason(delta.finish_reason, has_called=delta.has_called)
        return self._chunk(job, delta.index, content, logprobs, reason, delta.stop_reason, delta.token_ids)

    def usage_chunk(self, job: Job, tally: Tally) -> Json:
        return _head(job, "chat.completion.chunk") | {"choices": [], "usage": tally.usage()}

    def response(self, job: Job, wholes: Sequence[Whole], tally: Tally) -> Json:
        choices = [
            {
                "index": choice.index,
                "message": _message(whole),
                "logprobs": None if choice.sampling.logprobs is None else self._logprobs(whole.logprobs),
                "finish_reason": _finish_reason(whole.finish_reason, has_called=bool(whole.calls)),
                "stop_reason": whole.stop_reason,
            }
            | _ids(job, whole.token_ids)
            for choice, whole in zip(job.choices, wholes, strict=True)
        ]
        answer = _head(job, "chat.completion") | {"choices": choices, "usage": tally.usage()}
        return answer | _prompt_ids(job, job.choices[0]) | _prompt_logprobs(job, wholes[0], self._tokenizer)

    def _chunk(
        self,
        job: Job,
        index: int,
        delta: Json,
        logprobs: Json | None = None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        token_ids: Sequence[int] = (),
    ) -> Json:
        choice: Json = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        choice |= _ids(job, token_ids)
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        return _head(job, "chat.completion.chunk") | {"choices": [choice]}

    def _logprobs(self, entries: Sequence[TokenLogprobs]) -> Json:
        return {
            "content": [
                self._token(entry.token_id, entry.logprob)
                | {"top_logprobs": [self._token(token_id, logprob) for token_id, logprob in entry.top]}
                for entry in entries
            ]
        }

    def _token(self, token_id: int, logprob: float) -> Json:
        return {
            "token": self._tokenizer.token_text(token_id),
            "logprob": finite(logprob),
            "bytes": list(self._tokenizer.token_bytes(token_id)),
        }


class CompletionShape:
    """`text_completion`, whole and in pieces. One object serves one request: it counts text offsets."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._logprobs: dict[int, CompletionLogprobs] = {}
        self._begun: set[int] = set()
        """Choices that a chunk has been written of."""

    def opening(self, job: Job) -> list[Json]:
        """The echoed prompts, unless they have to wait for their log probabilities."""
        if job.echoes_logprobs:
            return []
        return [self._chunk(job, choice.index, choice.echo) for choice in job.choices if choice.echo]

    def chunk(self, job: Job, delta: Delta) -> Json:
        choice, scores = job.choices[delta.index], delta.prompt_logprobs
        parts, text = self._parts(job, choice, scores, delta.logprobs, delta.stop_logprobs), delta.text
        if job.echoes_logprobs and scores is not None:
            text = choice.echo + text
        logprobs = joined(parts) if parts else None
        return self._chunk(job, delta.index, text, logprobs, delta.finish_reason, delta.stop_reason, delta.token_ids)

    def usage_chunk(self, job: Job, tally: Tally) -> Json:
        return _head(job, "text_completion") | {"choices": [], "usage": tally.usage()}

    def response(self, job: Job, wholes: Sequence[Whole], tally: Tally) -> Json:
        choices = [self._choice(job, choice, whole) for choice, whole in zip(job.choices, wholes, strict=True)]
        return _head(job, "text_completion") | {"choices": choices, "usage": tally.usage()}

    def _choice(self, job: Job, choice: Choice, whole: Whole) -> Json:
        parts = self._parts(job, choice, whole.prompt_logprobs, whole.logprobs, whole.stop_logprobs)
        empty = self._of(choice.index).answer(())
        return {
            "index": choice.index,
            "text": choice.echo + whole.text,
            "logprobs": None if choice.sampling.logprobs is None else joined((empty, *parts)),
            "finish_reason": whole.finish_reason,
            "stop_reason": whole.stop_reason,
            **_ids(job, whole.token_ids),
            **_prompt_ids(job, choice),
            **_prompt_logprobs(job, whole, self._tokenizer),
        }

    def _chunk(
        self,
        job: Job,
        index: int,
        text: str,
        logprobs: Json | None = None,
        finish_reason: FinishReason | None = None,
        stop_reason: str | int | None = None,
        token_ids: Sequence[int] = (),
    ) -> Json:
        choice: Json = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        choice |= _ids(job, token_ids)
        if index not in self._begun:
            self._begun.add(index)
            choice |= _prompt_ids(job, job.choices[index])
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        return _head(job, "text_completion") | {"choices": [choice]}

    def _parts(
        self,
        job: Job,
        choice: Choice,
        scores: PromptLogprobs | None,
        entries: Sequence[TokenLogprobs],
        stop: TokenLogprobs | None,
    ) -> list[Json]:
        """Log probabilities of what comes next; after an echo, those of the stop token that ended the answer are last.

        Clients that score prompts drop the last entry, as one that was generated.
        """
        logprobs, parts = self._of(choice.index), []
        if job.echoes_logprobs and scores is not None:
            parts.append(logprobs.echo(choice.echo, choice.prompt_ids, scores, choice.sampling.logprobs or 0))
        if job.echoes_logprobs and stop is not None:
            entries = (*entries, stop)
        if entries:
            parts.append(logprobs.answer(entries))
        return parts

    def _of(self, index: int) -> CompletionLogprobs:
        if index not in self._logprobs:
            made = CompletionLogprobs(self._tokenizer, skip_special_tokens=self._skip_special_tokens)
            self._logprobs[index] = made
        return self._logprobs[index]


def _ids(job: Job, token_ids: Sequence[int]) -> Json:
    """vLLM's field of an answer, where the client asked for it."""
    return {"token_ids": list(token_ids)} if job.returns_token_ids else {}


def _prompt_ids(job: Job, choice: Choice) -> Json:
    """vLLM's field for the prompt, where the client asked for tokens."""
    return {"prompt_token_ids": list(choice.prompt_ids)} if job.returns_token_ids else {}


def _prompt_logprobs(job: Job, whole: Whole, tokenizer: Tokenizer) -> Json:
    """vLLM's field, where the client asked for it."""
    if job.prompt_logprobs is None or whole.prompt_logprobs is None:
        return {}
    return {"prompt_logprobs": prompt_logprobs(tokenizer, whole.prompt_logprobs, job.prompt_logprobs)}


def _message(whole: Whole) -> Json:
    message: Json = {"role": "assistant", "content": whole.text, "refusal": None}
    if whole.calls:
        message |= {"content": whole.text or None, "tool_calls": whole.calls}
    return message


def _call_piece(piece: CallPiece) -> Json:
    if piece.id is None:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


def _finish_reason(reason: FinishReason | None, *, has_called: bool) -> str | None:
    return "tool_calls" if has_called and reason is FinishReason.STOP else reason


def _head(job: Job, kind: str) -> Json:
    return {"id": job.id, "object": kind, "created": job.created, "model": job.model}
