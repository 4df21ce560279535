"""Which cases are measured, part by part. The pool that they share is made in the process that runs them."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

from pagefleet_kernels.bench import decode, flashinfer, model, prefill, transfer
from pagefleet_kernels.bench.case import Case
from pagefleet_kernels.bench.pools import bench_of, layout_of
from pagefleet_kernels.bench.tries import DECODE_TRIES, PREFILL_TRIES
from pagefleet_kernels.launch import DecodeLaunch, PrefillLaunch
from pagefleet_kernels.layout import Precision

SHOWN = (Precision.BF16, Precision.FP8_E4M3, Precision.INT8, Precision.INT4)
COMPILE_LIMIT_S = 120.0

DECODE_GRID = (
    (8, 16384),
    (8, 65536),
    (64, 16384),
    (1, 131072),
    (1, 16384),
    (256, 1024),
    (32, 4096),
    (1, 1024),
    (256, 16384),
)
"""Batch and tokens; those that the targets speak of first."""


def measured(measure: Callable[..., Any], device: str, *arguments: Any, **options: Any) -> Any:
    """Call `measure` with this process's pool."""
    return measure(bench_of(device), *arguments, **options)


def _case(section: str, name: str, measure: Callable[..., Any], device: str, *arguments: Any, **options: Any) -> Case:
    return Case(section, name, partial(measured, measure, device, *arguments, **options))


def decode_cases(device: str) -> Iterator[Case]:
    """Copy bandwidth, then decode attention: lengths by batches by precisions."""
    small = device == "cpu"
    yield _case("bandwidth", "copy", bandwidth, device)
    grid, precisions = (((1, 20),), SHOWN[1:2]) if small else (DECODE_GRID, SHOWN)
    for (batch, tokens), precision in itertools.product(grid, precisions):
        yield _case("decode", f"{precision} {batch} x {tokens}", decode.decode_case, device, precision, batch, tokens)


def bandwidth(bench: decode.Bench) -> dict[str, Any]:
    """What all shares are relative to, and how much is measured in."""
    return {
        "copy_gigabytes_per_s": round(bench.copy_bytes_per_s / 1e9, 1),
        "pool_gib": round(bench.pool.numel() / 2**30, 3),
    }


def tune_cases(device: str) -> Iterator[Case]:
    """Other launch parameters: decode at 16k tokens, batch 8, by numbers of splits; prefill of a whole prompt."""
    small = device == "cpu"
    batch, tokens, numbers = (1, 20, (3,)) if small else (8, 16384, (8, 16, 32))
    for precision, tries in list(DECODE_TRIES.items())[: 1 if small else None]:
        for (launch, _), splits in itertools.product(tries[: 1 if small else None], numbers):
            name = f"{precision} {_of_decode(launch)} splits {splits}"
            options = {"launch": launch, "splits": splits}
            yield _case("tune_decode", name, decode.decode_case, device, precision, batch, tokens, **options)
    for precision, plan in _prefill_launches(small):
        name = f"{precision} {_of_prefill(plan)}"
        yield _case("tune_prefill", name, _prefill, device, precision, 0, _whole(small), launch=plan)


def _prefill_launches(small: bool) -> list[tuple[Precision, PrefillLaunch]]:
    found = [(precision, launch) for precision, tries in PREFILL_TRIES.items() for launch, _ in tries]
    return found[:1] if small else found


def _of_decode(launch: DecodeLaunch) -> str:
    return f"{launch.frames},{launch.num_warps},{launch.num_stages}"


def _of_prefill(launch: PrefillLaunch) -> str:
    return f"{launch.rows},{launch.frames},{launch.num_warps},{launch.num_stages}"


def _whole(small: bool) -> int:
    return 24 if small else 16384


def _prefill(bench: decode.Bench, *arguments: Any, **options: Any) -> prefill.PrefillRow:
    return prefill.prefill_case(decode.one_layer(bench), *arguments, **options)


def _flash(bench: decode.Bench, chunk: int) -> prefill.PrefillRow:
    return prefill.flash_case(decode.one_layer(bench), chunk)


def prefill_cases(device: str) -> Iterator[Case]:
    """A whole prompt beside torch's FlashAttention, and a chunk after a long prefix."""
    small = device == "cpu"
    whole, chunk, prefix = _whole(small), *((8, 16) if small else (2048, 14336))
    yield _case("prefill", "torch flash", _flash, device, whole)
    for precision in SHOWN[:2] if small else SHOWN:
        yield _case("prefill", f"{precision} whole", _prefill, device, precision, 0, whole)
    for precision in SHOWN[:2]:
        yield _case("prefill", f"{precision} chunk", _prefill, device, precision, prefix, chunk)


def layout_cases(device: str) -> Iterator[Case]:
    """Frame-major against layer-major addresses over the same full pool."""
    batch, tokens = (1, 20) if device == "cpu" else (8, 16384)
    for precision in SHOWN[: 1 if device == "cpu" else 2]:
        for name in ("frame-major", "layer-major"):
            yield _case("layouts", f"{name} {precision}", layout_case, device, name, precision, batch, tokens)


def layout_case(bench: decode.Bench, name: str, precision: Precision, batch: int, tokens: int) -> dict[str, Any]:
    """One order. A layer-major frame is a little longer, so both take fewer frames than the pool holds."""
    count = len(bench.pool) - len(bench.pool) // 16
    if name == "layer-major":
        addresses = decode.layer_major(bench.layout, count)
        row = decode.decode_case(bench, precision, batch, tokens, addresses=addresses)
    else:
        row = decode.decode_case(replace(bench, pool=bench.pool[:count]), precision, batch, tokens)
    return {"layout": name, "precision": str(precision), "microseconds": row.microseconds, "share": row.copy_share}


def transfer_cases(device: str) -> Iterator[Case]:
    """Swap, seal, write and copy."""
    frames, groups = (4, 2) if device == "cpu" else (1024, 64)
    yield _case("transfer", f"swap {frames} frames", transfer.swap_cases, device, frames)
    yield _case("transfer", "frames", transfer.frame_cases, device, groups)


@cache
def _weights(device: str) -> model.Weights:
    sizes = (64, 96, 128) if device == "cpu" else (4096, 14336, 128256)
    return model.make_weights(bench_of(device), **dict(zip(("hidden", "middle", "vocabulary"), sizes, strict=True)))


def _step(bench: decode.Bench, *arguments: Any) -> model.ModelRow:
    return model.step_case(bench, _weights(bench.device), *arguments)


def model_cases(device: str) -> Iterator[Case]:
    """A decode step of the whole model, BF16 against FP8 frames."""
    small = device == "cpu"
    shapes = [(1, 20)] if small else [(64, 8192), (16, 32768), (1, 8192)]
    for (batch, tokens), precision in itertools.product(shapes, SHOWN[1:2] if small else SHOWN[:2]):
        yield _case("model", f"{precision} {batch} x {tokens}", _step, device, precision, batch, tokens)


def flashinfer_cases(device: str) -> Iterator[Case]:
    """Another library on the same shapes, where it is installed; it runs on GPUs only."""
    if device == "cpu" or not flashinfer.is_installed():
        yield Case("flashinfer", "left out", partial(dict, left_out="it needs a GPU and the package flashinfer"))
        return
    for batch, tokens in ((8, 16384), (64, 4096), (1, 65536)):
        yield _case("flashinfer", f"decode {batch} x {tokens}", flashinfer.decode_case, device, batch, tokens)
    yield _case("flashinfer", "prefill 16384", flashinfer.prefill_case, device, 16384)


def compile_cases(device: str) -> Iterator[Case]:
    """The kernels of the other parts, compiled by running them once, many at a time."""
    for precision in SHOWN[1:2] if device == "cpu" else SHOWN:
        yield _compiling("compile", "prefill", precision, None, device)
        yield _compiling("compile", "decode", precision, None, device)


def compile_tries(device: str) -> Iterator[Case]:
    """The same for launch parameters that are tried."""
    small = device == "cpu"
    for precision, plan in _prefill_launches(small):
        yield _compiling("compile_tries", f"prefill {_of_prefill(plan)}", precision, plan, device)
    for precision, tries in DECODE_TRIES.items() if not small else ():
        for launch, _ in tries:
            yield _compiling("compile_tries", f"decode {_of_decode(launch)}", precision, launch, device)


def _compiling(section: str, name: str, precision: Precision, launch: Any, device: str) -> Case:
    return Case(section, f"{name} {precision}", partial(warm, name, precision, launch, device), COMPILE_LIMIT_S)


def warm(name: str, precision: Precision, launch: Any, device: str) -> dict[str, Any]:
    """Run one kernel of the measurements on a small pool, and say how long it took with its compilation."""
    began, layout = time.monotonic(), layout_of(device)
    heads = 4 * layout.num_kv_heads
    pool_bytes = 64 * layout.frame_bytes
    bench = decode.make_bench(layout, heads=heads, pool_bytes=pool_bytes, device=device, copy_bytes_per_s=1.0)
    tokens = 20 if device == "cpu" else 300
    if name.startswith("decode"):
        for splits in (1, 4):
            decode.decode_case(bench, precision, 2, tokens, launch=launch, splits=splits)
    else:
        prefill.prefill_case(decode.one_layer(bench), precision, 0, tokens, launch=launch)
    return {"kernels": f"{name} {precision}", "seconds": round(time.monotonic() - began, 1)}
