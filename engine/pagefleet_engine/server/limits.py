"""Every bound on what a client may send or hold open, in one value that is printed at start and exported as metrics.

Those of the queue come from the command line; what depends on the model (context length, vocabulary) is not here.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from pagefleet_engine.contract.arguments import EngineArguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Sizes are bytes or counts, times are seconds. What lies above a bound is refused before any work is done."""

    header_bytes: int = 65_536
    """Names and values of a request's headers together: 431."""
    headers: int = 100
    """Header lines of a request; fixed in the HTTP server: 431."""
    header_timeout_s: float = 10.0
    """Time to send a header; also how long an idle connection is kept."""
    connections: int = 4_096
    """Open connections; further ones wait in the kernel's backlog."""
    connection_age_s: float = 300.0
    """A connection older than this is closed after its next response, so that new pods get traffic."""
    target_bytes: int = 8_192
    """Path and query: 414."""
    body_bytes: int = 10 * 1024 * 1024
    """Body of a request, chunked or not: 413."""
    body_pieces: int = 20_000
    """Pieces in which a body may arrive: 413. A body of one-byte chunks costs more than its size."""
    body_inline_bytes: int = 65_536
    """Larger bodies are parsed one at a time and beside the event loop, and count for `bodies_bytes`."""
    bodies_bytes: int = 128 * 1024 * 1024
    """Large bodies that arrive or wait to be parsed, all of them together: 429."""
    body_timeout_s: float = 30.0
    """Time to send a body: 408."""
    write_timeout_s: float = 60.0
    """A client that does not read for so long loses its request."""
    stream_headers_s: float = 1.0
    """A stream that waits for its first token gets its headers so long after the engine has taken the request."""
    stream_comment_s: float = 15.0
    """A stream with nothing to say gets a comment line each time, so that nobody on the way takes it for dead."""
    json_depth: int = 64
    json_nodes: int = 500_000
    """Values in a body, those in lists and objects included."""
    json_text_chars: int = 1024 * 1024
    """JSON inside the strings of a request, such as the arguments of calls in a dialogue, all of it together."""
    json_text_nodes: int = 50_000
    """Values in one such string."""
    queued_requests: int = 1_024
    """Requests that wait for the engine, each choice by itself; further ones get 429. `--max-num-queued-reqs`."""
    queued_tokens: int = 524_288
    """Tokens of prompts that wait for the engine, each prompt once; further ones get 429. `--max-num-queued-tokens`."""
    prompts: int = 256
    messages: int = 4_096
    choices: int = 256
    """`n` times prompts."""
    n: int = 16
    """Also of `best_of`."""
    cache_salt_chars: int = 256
    stop_strings: int = 16
    stop_chars: int = 256
    """Characters of one stop string."""
    stop_token_ids: int = 128
    logit_bias: int = 1_024
    logprobs: int = 20
    """Also of `prompt_logprobs`."""
    prompt_logprobs_total: int = 500_000
    """Log probabilities of prompt tokens in one answer: tokens times the likely ones of each, and its own."""
    chars_per_token: int = 128
    """Text longer than this times the context length is refused without tokenising it."""
    template_timeout_s: float = 5.0
    """Time to render a chat template and to tokenise its output, once that has begun."""
    tokenizer_threads: int = 2
    tokenizer_queue: int = 256
    """Texts that wait for a thread; further requests get 429."""
    thread_timeout_s: float = 10.0
    """Time that a text, a schema or a grammar waits for a thread, because others take long: 429."""
    template_variables: int = 16
    """Entries of `chat_template_kwargs`."""
    template_variable_chars: int = 1_024
    """Of one that is a string."""
    tools: int = 128
    """Also calls in one message of a dialogue."""
    tools_bytes: int = 262_144
    tool_calls: int = 16
    """Calls in one answer, where the client allows more than one."""
    schema_bytes: int = 65_536
    """Of one JSON schema, one grammar, or the choices together."""
    schema_depth: int = 32
    """Nested values of a JSON schema."""
    regex_chars: int = 4_096
    """Characters of a regular expression, alone or in a schema."""
    structured_choices: int = 1_024
    structured_threads: int = 2
    structured_queue: int = 64
    """Schemas and grammars that wait to be compiled; further requests get 429."""
    structured_timeout_s: float = 1.0
    """Time to compile a schema or a grammar, once that has begun."""
    structured_cache: int = 64
    """Compiled ones that are kept, the most recently used; the dearest hold a few MB."""
    structured_checks: int = 512
    """Schemas for finished answers that are kept."""
    judge_threads: int = 2
    """For finished answers; those that compile are others."""
    judged_inline_chars: int = 4_096
    """Longer answers are checked against their schema by a thread."""

    def with_queue_of(self, arguments: EngineArguments) -> Limits:
        """The same with the bounds of this command line."""
        return replace(self, queued_requests=arguments.max_num_queued_reqs, queued_tokens=arguments.queued_tokens)

    def lines(self) -> list[str]:
        """`name=value` for each bound, for the start-up log."""
        return [f"{name}={value}" for name, value in asdict(self).items()]
