"""Names of the metrics that the engine exports and the operator reads.

vLLM's names, labels and types where the meaning is the same; aliases are names that dashboards and alerts of earlier
vLLM versions still use.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Outcome(StrEnum):
    """What became of an answer that had a schema."""

    VALID = "valid"
    INVALID_JSON = "invalid_json"
    SCHEMA_VIOLATION = "schema_violation"
    TRUNCATED = "truncated"
    """It ended by its length, and what is there is not valid."""
    ABORTED = "aborted"
    """It did not end by itself: the client left, the engine stopped, or the request failed."""


class Refusal(StrEnum):
    """Why a request got an error in place of an answer; a fault of the engine (500) is no refusal."""

    QUEUE_FULL = "queue_full"
    """More wait than may, for the engine or for the threads before it: 429."""
    INVALID = "invalid"
    """The request has to change: any other 4xx."""
    UNAUTHORISED = "unauthorised"
    LOADING = "loading"
    """There was no model yet; these show once there is."""
    DRAINING = "draining"
    ABORTED = "aborted"
    """It ran, and was cut because the engine was told to stop."""
    ENGINE_STOPPED = "engine_stopped"


MIXED: Final = "mixed"
"""Stands for the precision of an answer whose precision changed on the way, or was chosen by its length."""


class Metric(StrEnum):
    """Every metric of ours by the name that a scrape shows; a histogram by the name of its family."""

    REQUESTS_RUNNING = "vllm:num_requests_running"
    REQUESTS_WAITING = "vllm:num_requests_waiting"
    REQUESTS_SWAPPED = "vllm:num_requests_swapped"
    KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
    CPU_CACHE_USAGE = "vllm:cpu_cache_usage_perc"
    PREEMPTIONS = "vllm:num_preemptions_total"
    PROMPT_TOKENS = "vllm:prompt_tokens_total"
    GENERATION_TOKENS = "vllm:generation_tokens_total"
    PREFIX_QUERIES = "vllm:prefix_cache_queries_total"
    PREFIX_HITS = "vllm:prefix_cache_hits_total"
    REQUEST_SUCCESS = "vllm:request_success_total"
    TIME_TO_FIRST_TOKEN = "vllm:time_to_first_token_seconds"
    INTER_TOKEN_LATENCY = "vllm:inter_token_latency_seconds"
    E2E_LATENCY = "vllm:e2e_request_latency_seconds"
    CAP = "pagefleet:max_num_active_seqs"
    CAPACITY = "pagefleet:max_num_seqs"
    MAX_MODEL_LEN = "pagefleet:max_model_len"
    FRAMES = "pagefleet:frames"
    SEALED_FRAMES = "pagefleet:sealed_frames"
    STEPS = "pagefleet:steps_total"
    SWAPS = "pagefleet:swaps_total"
    RESUMES = "pagefleet:resumes_total"
    RECOMPUTES = "pagefleet:recomputes_total"
    PREFIX_HOST_HITS = "pagefleet:prefix_cache_host_hits_total"
    EVICTED_FRAMES = "pagefleet:evicted_frames_total"
    DEMOTED_FRAMES = "pagefleet:demoted_frames_total"
    REFUSED = "pagefleet:requests_refused_total"
    LIMITS = "pagefleet:request_limits"
    ROUTE_REQUESTS = "pagefleet:route_requests_total"
    STRUCTURED_OUTPUTS = "pagefleet:structured_outputs_total"


ALIASES: Final[dict[str, Metric]] = {
    "vllm:gpu_cache_usage_perc": Metric.KV_CACHE_USAGE,
    "vllm:gpu_cache_usage_factor": Metric.KV_CACHE_USAGE,
    "vllm:time_per_output_token_seconds": Metric.INTER_TOKEN_LATENCY,
    "vllm:gpu_prefix_cache_queries_total": Metric.PREFIX_QUERIES,
    "vllm:gpu_prefix_cache_hits_total": Metric.PREFIX_HITS,
}

REMEDY_METRICS: Final[tuple[str, ...]] = (
    Metric.REQUESTS_RUNNING,
    Metric.REQUESTS_WAITING,
    Metric.REQUESTS_SWAPPED,
    Metric.KV_CACHE_USAGE,
    Metric.PREEMPTIONS,
    Metric.SWAPS,
    Metric.RECOMPUTES,
    Metric.CAP,
    Metric.CAPACITY,
    Metric.MAX_MODEL_LEN,
    Metric.REFUSED,
    Metric.REQUEST_SUCCESS,
    Metric.STEPS,
    Metric.TIME_TO_FIRST_TOKEN,
    Metric.INTER_TOKEN_LATENCY,
    Metric.STRUCTURED_OUTPUTS,
    Metric.ROUTE_REQUESTS,
)
"""What the operator reads of every pod in every tick; an engine that does not know a name leaves it out."""

HELP: Final[dict[Metric, str]] = {
    Metric.REQUESTS_RUNNING: "Requests that take part in the steps.",
    Metric.REQUESTS_WAITING: "Requests that wait to be admitted.",
    Metric.REQUESTS_SWAPPED: "Requests whose frames were moved to host memory.",
    Metric.KV_CACHE_USAGE: "Frames that requests hold, as a share of the pool; 1 is all of them.",
    Metric.CPU_CACHE_USAGE: "Host memory for swapped frames that requests hold, as a share; 1 is all of it.",
    Metric.PREEMPTIONS: "Times a running request had to make room.",
    Metric.PROMPT_TOKENS: "Prompt tokens processed.",
    Metric.GENERATION_TOKENS: "Tokens generated.",
    Metric.PREFIX_QUERIES: "Prompt tokens looked up in the prefix cache.",
    Metric.PREFIX_HITS: "Prompt tokens found in the prefix cache, in the pool or in host memory.",
    Metric.REQUEST_SUCCESS: "Requests that ended, by reason.",
    Metric.TIME_TO_FIRST_TOKEN: "Seconds from a request's arrival to its first token.",
    Metric.INTER_TOKEN_LATENCY: "Seconds between two tokens of a request.",
    Metric.E2E_LATENCY: "Seconds from a request's arrival to its last token.",
    Metric.CAP: "The live limit on running requests.",
    Metric.CAPACITY: "Most requests that may ever run at once in this process.",
    Metric.MAX_MODEL_LEN: "The live limit on prompt plus answer of new requests, in tokens.",
    Metric.FRAMES: "Frames of the KV pool, by state.",
    Metric.SEALED_FRAMES: "Sealed frames by precision, cached ones that nobody holds included.",
    Metric.STEPS: "Steps finished since the start.",
    Metric.SWAPS: "Preempted requests whose frames were moved to host memory.",
    Metric.RESUMES: "Swapped requests whose frames were brought back.",
    Metric.RECOMPUTES: "Preempted requests whose KV was dropped and has to be computed again.",
    Metric.PREFIX_HOST_HITS: "Prompt tokens found in the prefix cache whose frames came back from host memory.",
    Metric.EVICTED_FRAMES: "Cached frames that nobody held and that made room.",
    Metric.DEMOTED_FRAMES: "BF16 frames that became part of an FP8 frame under pressure.",
    Metric.REFUSED: "Requests that got an error instead of an answer, by reason; faults of the engine are none.",
    Metric.ROUTE_REQUESTS: "Prompts that began to be answered, by route and by the precision of their KV.",
    Metric.STRUCTURED_OUTPUTS: "Finished answers that had a JSON schema or called tools, by what became of them.",
    Metric.LIMITS: "Bounds on what a client may send or hold open, by name; bytes, counts or seconds.",
}

LATENCY_BUCKETS_S: Final[dict[Metric, tuple[float, ...]]] = {
    Metric.TIME_TO_FIRST_TOKEN: (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
        *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    Metric.INTER_TOKEN_LATENCY: (
        *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
        *(10.0, 20.0, 40.0, 80.0),
    ),
    Metric.E2E_LATENCY: (
        *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
        *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
}
"""Upper bounds as in vLLM, so that its dashboards and quantile rules fit."""
