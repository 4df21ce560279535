"""The engine's command line for a spec. Rendering and parsing are the engine contract's; this maps the fields."""

from __future__ import annotations

from typing import Final

from pagefleet_engine.contract.arguments import ArgumentError, EngineArguments, flag_name, parse
from pagefleet_operator.api.model_uri import ModelScheme, parse_model_uri
from pagefleet_operator.api.quantities import parse_duration, parse_quantity, parse_share
from pagefleet_operator.api.v1alpha1 import LLMServiceSpec

MODEL_MOUNT: Final = "/model"
CONTROL_MOUNT: Final = "/etc/pagefleet/control"
API_KEYS_MOUNT: Final = "/etc/pagefleet/api-keys"
STATE_MOUNT: Final = "/var/lib/pagefleet"
KEYS_FILE: Final = "keys"
RUNTIME_FILE: Final = "runtime.json"
EXTRA_FIELDS: Final = (
    "max_num_batched_tokens",
    "max_num_queued_reqs",
    "max_num_queued_tokens",
    "enable_prefix_caching",
    "batch_invariant",
    "dtype",
    "tool_call_parser",
    "seed",
)
"""What `extraArgs` may set: every other flag is a field of the resource, or the operator's own business."""


def container_args(spec: LLMServiceSpec) -> list[str]:
    """What the engine container is started with. Raises `ArgumentError`, with one line, if the engine would refuse."""
    for word in spec.engine.extra_args:
        _check_extra(word)
    own = engine_arguments(spec).render()
    if spec.engine.extra_args and not spec.engine.extra_args[0].startswith("-"):
        raise ArgumentError(f"extra argument {spec.engine.extra_args[0]!r} belongs to no flag: remove it")
    words = [*own, *spec.engine.extra_args]
    parse(words)
    return words


def engine_arguments(spec: LLMServiceSpec) -> EngineArguments:
    """The fields of the spec as engine arguments. Raises `ArgumentError`."""
    engine, cache = spec.engine, spec.engine.kv_cache
    cap = engine.max_num_seqs.initial_cap
    return EngineArguments(
        model=model_argument(spec.model.uri),
        served_model_name=(spec.model.name, *sorted(route.model for route in spec.routes)),
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs.max,
        max_num_active_seqs=cap if cap < engine.max_num_seqs.max else None,
        block_size=cache.block_size,
        kv_cache_dtype=cache.precision,
        kv_cache_memory_bytes=int(parse_quantity(cache.size)) if cache.size is not None else None,
        gpu_memory_utilization=parse_share(cache.memory_utilization),
        swap_space=float(parse_quantity(cache.swap_space) / 2**30),
        tensor_parallel_size=engine.tensor_parallel_size,
        api_key_file=API_KEYS_MOUNT if spec.api_keys is not None else None,
        control_key_file=f"{CONTROL_MOUNT}/{KEYS_FILE}",
        runtime_config_file=f"{CONTROL_MOUNT}/{RUNTIME_FILE}",
        state_dir=STATE_MOUNT,
        drain_timeout=parse_duration(spec.drain.timeout).total_seconds(),
    )


def model_argument(uri: str) -> str:
    """Where the engine finds the model: a path in its container, or a name on a hub, which it downloads itself.

    Registries are refused before this.
    """
    source = parse_model_uri(uri)
    if source.scheme is ModelScheme.HF:
        return uri
    if source.scheme is ModelScheme.PVC:
        return MODEL_MOUNT + source.path.rstrip("/")
    return source.path


def model_claim(uri: str) -> str | None:
    """The PersistentVolumeClaim that holds the model, if one does."""
    source = parse_model_uri(uri)
    return source.authority if source.scheme is ModelScheme.PVC else None


def _check_extra(word: str) -> None:
    allowed = [flag_name(name) for name in EXTRA_FIELDS]
    flag = word.partition("=")[0]
    if flag.startswith("-") and not _is_number(flag) and flag not in allowed:
        raise ArgumentError(f"{flag} cannot be an extra argument: use the field for it, or one of {', '.join(allowed)}")


def _is_number(word: str) -> bool:
    return word.lstrip("-").replace(".", "", 1).isdigit()
