"""Names of the metrics that the engine exports and the operator reads.

vLLM's names, labels and types where the meaning is the same; aliases are names that dashboards and alerts of earlier
vLLM versions still use.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Metric(StrEnum):
    """Every metric of ours by the name that a scrape shows."""

    REQUESTS_RUNNING = "vllm:num_requests_running"
    REQUESTS_WAITING = "vllm:num_requests_waiting"
    REQUESTS_SWAPPED = "vllm:num_requests_swapped"
    KV_CACHE_USAGE = "vllm:kv_cache_usage_perc"
    CPU_CACHE_USAGE = "vllm:cpu_cache_usage_perc"
    PREEMPTIONS = "vllm:num_preemptions_total"
    PROMPT_TOKENS = "vllm:prompt_tokens_total"
    GENERATION_TOKENS = "vllm:generation_tokens_total"
    REQUEST_SUCCESS = "vllm:request_success_total"
    TIME_TO_FIRST_TOKEN = "vllm:time_to_first_token_seconds"
    INTER_TOKEN_LATENCY = "vllm:inter_token_latency_seconds"
    E2E_LATENCY = "vllm:e2e_request_latency_seconds"
    CAP = "pagefleet:max_num_active_seqs"
    CAPACITY = "pagefleet:max_num_seqs"
    FRAMES = "pagefleet:frames"
    REFUSED = "pagefleet:requests_refused_total"


ALIASES: Final[dict[str, Metric]] = {
    "vllm:gpu_cache_usage_perc": Metric.KV_CACHE_USAGE,
    "vllm:gpu_cache_usage_factor": Metric.KV_CACHE_USAGE,
}
