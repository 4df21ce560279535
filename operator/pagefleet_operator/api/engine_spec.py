"""`spec.model` and `spec.engine`: what is served, and what the engines are started with."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from pagefleet_engine.contract.hub import URI_PATTERN
from pagefleet_engine.contract.precision import Precision
from pagefleet_operator.api.base import ApiModel, Format, Rule
from pagefleet_operator.api.model_uri import is_model_uri
from pagefleet_operator.api.scalars import MemoryShare, PoolSize, Quantity, ServedName, matching

_URI: Final = (
    r"^(file://(/[^/\s?#]+)+/?|pvc://[a-z0-9]([-.a-z0-9]*[a-z0-9])?(/[^/\s?#]+)*/?|oci://[^/\s?#]+(/[^/\s?#]+)+|"
    rf"{URI_PATTERN})$"
)
_DOUBLED: Final = r"^hf://([^/]+/)?[^/@]*(--|\.\.)"  # hubs have no such names
ModelUri = Annotated[
    str,
    Field(min_length=1, max_length=512),
    Format(
        cel=rf"self.matches(r'{_URI}') && !self.matches(r'/\.\.?(/|$)') && !self.matches(r'{_DOUBLED}')",
        message="must be file:///path, pvc://claim/path, hf://owner/name or oci://registry/name, "
        "without spaces and without .. in the path",
        holds=is_model_uri,
    ),
]
Image = Annotated[
    str,
    Field(min_length=1, max_length=512),
    matching(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*(:[0-9]+)?(/[A-Za-z0-9._-]+)*(:[A-Za-z0-9._-]+)?(@sha256:[a-f0-9]{64})?$",
        "must be an image such as registry.example/pagefleet/engine:1.0 or one with @sha256:<digest>",
    ),
]
Sequences = Annotated[int, Field(ge=1, le=4096)]


class ModelSpec(ApiModel):
    """The model, and the name that clients ask for."""

    uri: ModelUri
    """Where the model is: `file:///path` in the engine image or on a volume of `pod.volumes`, `pvc://claim/path` on a
    PersistentVolumeClaim of the same namespace (mounted read-only), `hf://owner/name`, `hf://owner/name@revision` or
    `hf://owner/name/file.gguf` on a hub, from which every pod downloads it when it starts, `oci://registry/name`."""
    name: ServedName
    """The model's name in the API."""


class MaxNumSeqs(ApiModel):
    """How many requests an engine runs at once."""

    initial: Sequences | None = None
    """The cap that an engine starts with. Absent: `max`."""
    min: Sequences = 1
    """The lowest cap that tuning may set."""
    max: Sequences = 32
    """The capacity: what an engine reserves for when it starts. The cap never goes above it."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.min <= self.max",
            message="min must not be above max: lower min or raise max",
            field="min",
            holds=lambda seqs: seqs.min <= seqs.max,
        ),
        Rule(
            cel="!has(self.initial) || (self.min <= self.initial && self.initial <= self.max)",
            message="initial must lie within min and max",
            field="initial",
            holds=lambda seqs: seqs.initial is None or seqs.min <= seqs.initial <= seqs.max,
        ),
    )

    @property
    def initial_cap(self) -> int:
        """The cap that an engine starts with."""
        return self.initial if self.initial is not None else self.max


class KvCacheSpec(ApiModel):
    """The pool of KV frames of each engine."""

    precision: Precision = Precision.FP8_E4M3
    """The precision of sealed frames."""
    memory_utilization: MemoryShare = "0.90"
    """The share of the device's memory that an engine may use, for weights and frames together. Not used when `size`
    is given."""
    size: PoolSize | None = None
    """A pool of exactly this many bytes, for example on CPU. Absent: what `memoryUtilization` leaves after the
    weights."""
    swap_space: Quantity = "4Gi"
    """Host memory for the frames of preempted requests and for cached prefixes. An engine takes at most a quarter of
    the memory that its container may use, or of the node's free memory where it has no limit, and says so in its log.
    The memory is part of the container's use: count it in `pod.resources.limits.memory`."""
    block_size: Literal[8, 16, 32, 64] = 16
    """Tokens of a BF16 frame."""


class EngineSpec(ApiModel):
    """What the engines are started with."""

    image: Image
    """The engine's image."""
    max_num_seqs: MaxNumSeqs = MaxNumSeqs()
    """How many requests an engine runs at once."""
    kv_cache: KvCacheSpec = KvCacheSpec()
    """The pool of KV frames."""
    max_model_len: Annotated[int, Field(ge=16, le=10_000_000)] | None = None
    """The longest prompt plus answer, in tokens. Absent: what the model was trained for."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """How many devices share one copy of the model."""
    extra_args: Annotated[tuple[Annotated[str, Field(min_length=1, max_length=1024)], ...], Field(max_length=64)] = ()
    """More arguments for the engine, one word per entry. Flags that a field of this resource renders are refused."""
