"""Which cases are measured, in the order of their worth: a run that is cut short has the important ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from pagefleet_kernels.bench import decode, flashinfer, model, prefill, transfer
from pagefleet_kernels.bench.timing import copy_bandwidth
from pagefleet_kernels.launch import DecodeLaunch, PrefillLaunch
from pagefleet_kernels.layout import FrameLayout, Precision

SHOWN = (Precision.BF16, Precision.FP8_E4M3, Precision.INT8, Precision.INT4)


DECODE_TRIES = {
    Precision.BF16: [(4, 4, 3), (4, 4, 5), (4, 2, 4), (8, 4, 4), (2, 1, 5)],
    Precision.FP8_E4M3: [(4, 4, 3), (4, 4, 5), (2, 4, 5), (2, 2, 4), (4, 2, 4), (2, 1, 4)],
    Precision.INT8: [(1, 4, 4), (1, 2, 4), (1, 1, 4)],
    Precision.INT4: [(1, 4, 4), (1, 2, 4), (1, 1, 4)],
}
"""Frames per iteration, warps, stages."""

PREFILL_TRIES = [
    PrefillLaunch(rows=128, frames=8, raw=32, num_warps=8, num_stages=2),
    PrefillLaunch(rows=128, frames=4, raw=32, num_warps=4, num_stages=3),
    PrefillLaunch(rows=64, frames=4, raw=32, num_warps=4, num_stages=3),
    PrefillLaunch(rows=128, frames=2, raw=32, num_warps=8, num_stages=4),
]


class Recorder(Protocol):
    """The report of `check_gpu.py`."""

    def run(self, section: str, name: str, case: Callable[[], Any]) -> Any: ...
    def write(self) -> None: ...


def warm_jobs() -> list[tuple[str, Precision, Any]]:
    """What the measurements compile, so that many processes can compile it at once: arguments of `warm`."""
    jobs: list[tuple[str, Precision, Any]] = [("prefill", p, n) for n in PREFILL_TRIES for p in SHOWN[:2]]
    jobs += [("prefill", p, None) for p in SHOWN]
    for precision, tries in DECODE_TRIES.items():
        jobs += [("decode", precision, DecodeLaunch(frames=f, num_warps=w, num_stages=s)) for f, w, s in tries]
    return jobs + [("decode", precision, None) for precision in SHOWN]


def warm(kind: str, precision: Precision, launch: Any, device: str) -> float:
    """Compile one kernel of the measurements by running it on a small pool."""
    layout = FrameLayout(num_layers=32, num_kv_heads=8, head_dim=128)
    bench = decode.make_bench(layout, heads=32, pool_bytes=64 * layout.frame_bytes, device=device, copy_bytes_per_s=1.0)
    if kind == "decode":
        for splits in (1, 4):
            decode.decode_case(bench, precision, 2, 300, launch=launch, splits=splits)
    else:
        prefill.prefill_case(decode.one_layer(bench), precision, 0, 256, launch=launch)
    return 0.0


def measure(report: Recorder, device: str, parts: Sequence[str]) -> None:
    """Measure the named parts (`all` for every one)."""
    small = device == "cpu"
    copy = copy_bandwidth(device)
    report.run("bandwidth", "copy", lambda: {"copy_gigabytes_per_s": round(copy / 1e9, 1)})
    layout = FrameLayout(num_layers=1, num_kv_heads=1, head_dim=16, block_size=8)
    if not small:
        layout = FrameLayout(num_layers=32, num_kv_heads=8, head_dim=128)
    bench = decode.make_bench(
        layout,
        heads=4 * layout.num_kv_heads,
        pool_bytes=64 * layout.frame_bytes if small else 96 * 2**30,
        device=device,
        copy_bytes_per_s=copy,
    )
    steps: dict[str, Callable[[], None]] = {
        "tune_decode": lambda: tune_decode(report, bench, small),
        "decode": lambda: decode_grid(report, bench, small),
        "prefill": lambda: prefill_cases(report, bench, small),
        "layouts": lambda: layouts(report, bench, small),
        "transfer": lambda: transfers(report, bench, small),
        "model": lambda: models(report, bench, small),
        "flashinfer": lambda: beside_flashinfer(report, bench, small),
    }
    for name, step in steps.items():
        if "all" in parts or name in parts:
            step()
            report.write()


def decode_grid(report: Recorder, bench: decode.Bench, small: bool) -> None:
    """Lengths by batches by precisions; the target cases first."""
    grid = [
        (8, 16384),
        (8, 65536),
        (64, 16384),
        (1, 131072),
        (1, 16384),
        (256, 1024),
        (32, 4096),
        (1, 1024),
        (256, 16384),
    ]
    for (batch, tokens), precision in itertools.product([(1, 20)] if small else grid, SHOWN[1:2] if small else SHOWN):
        case = f"{precision} {batch} x {tokens}"
        report.run("decode", case, lambda p=precision, b=batch, t=tokens: decode.decode_case(bench, p, b, t))  # type: ignore[misc]


def tune_decode(report: Recorder, bench: decode.Bench, small: bool) -> None:
    """Launch parameters at 16k tokens, batch 8, and numbers of splits."""
    batch, tokens = (1, 20) if small else (8, 16384)
    for precision, launches in list(DECODE_TRIES.items())[: 1 if small else None]:
        for frames, warps, stages in launches[:1] if small else launches:
            launch = DecodeLaunch(frames=frames, num_warps=warps, num_stages=stages)
            for splits in (3,) if small else (8, 16, 32):
                report.run(
                    "tune_decode",
                    f"{precision} {frames},{warps},{stages} splits {splits}",
                    lambda p=precision, n=launch, s=splits: decode.decode_case(  # type: ignore[misc]
                        bench, p, batch, tokens, launch=n, splits=s
                    ),
                )


def prefill_cases(report: Recorder, bench: decode.Bench, small: bool) -> None:
    """A whole prompt beside torch's FlashAttention, and a chunk after a long prefix."""
    bench = decode.one_layer(bench)
    whole, chunk, prefix = (24, 8, 16) if small else (16384, 2048, 14336)
    report.run("prefill", "torch flash", lambda: prefill.flash_case(bench, whole))
    tries: list[PrefillLaunch | None] = [None]
    if not small:
        tries += PREFILL_TRIES
    for launch in tries:
        for precision in SHOWN[:2] if launch or small else SHOWN:
            report.run(
                "prefill",
                f"{precision} whole",
                lambda p=precision, n=launch: prefill.prefill_case(bench, p, 0, whole, launch=n),  # type: ignore[misc]
            )
    for precision in SHOWN[:2]:
        report.run(
            "prefill",
            f"{precision} chunk",
            lambda p=precision: prefill.prefill_case(bench, p, prefix, chunk),  # type: ignore[misc]
        )


def layouts(report: Recorder, bench: decode.Bench, small: bool) -> None:
    """Frame-major against layer-major addresses over the same full pool."""
    batch, tokens = (1, 20) if small else (8, 16384)
    num_frames = bench.pool.shape[0]
    other = decode.layer_major(bench.layout, num_frames - num_frames // 16)
    for precision in SHOWN[: 1 if small else 2]:
        cases = (("frame-major", None), ("layer-major", other))
        for name, addresses in cases:

            def case(p: Precision = precision, a: Any = addresses, n: str = name) -> dict[str, Any]:
                kept = bench if a is None else _fewer_frames(bench, num_frames - num_frames // 16)
                row = decode.decode_case(kept, p, batch, tokens, addresses=a)
                return {"layout": n, "precision": str(p), "microseconds": row.microseconds, "share": row.copy_share}

            report.run("layouts", f"{name} {precision}", case)


def _fewer_frames(bench: decode.Bench, num_frames: int) -> decode.Bench:
    """Frames whose layer-major addresses stay inside the pool; the tensor starts at the same byte."""
    return replace(bench, pool=bench.pool[:num_frames])


def transfers(report: Recorder, bench: decode.Bench, small: bool) -> None:
    """Swap, seal, write and copy."""
    count = 4 if small else 1024
    report.run("transfer", f"swap {count} frames", lambda: transfer.swap_cases(bench, count))
    report.run("transfer", "frames", lambda: transfer.frame_cases(bench, 2 if small else 64))


def models(report: Recorder, bench: decode.Bench, small: bool) -> None:
    """A decode step of the whole model, BF16 against FP8 frames."""
    sizes = {"hidden": 64, "middle": 96, "vocabulary": 128} if small else {
        "hidden": 4096, "middle": 14336, "vocabulary": 128256
    }  # fmt: skip
    weights = model.make_weights(bench, **sizes)
    for batch, tokens in [(1, 20)] if small else [(64, 8192), (16, 32768), (1, 8192)]:
        for precision in SHOWN[1:2] if small else SHOWN[:2]:
            report.run(
                "model",
                f"{precision} {batch} x {tokens}",
                lambda p=precision, b=batch, t=tokens: model.step_case(bench, weights, p, b, t),  # type: ignore[misc]
            )


def beside_flashinfer(report: Recorder, bench: decode.Bench, small: bool) -> None:
    """Another library on the same shapes, where it is installed; it runs on GPUs only."""
    if small or not flashinfer.is_installed():
        reason = "it needs a GPU" if small else "it is not installed"
        report.run("flashinfer", "left out", lambda: {"left_out": reason})
        return
    for batch, tokens in ((8, 16384), (64, 4096), (1, 65536)):
        report.run(
            "flashinfer", f"decode {batch} x {tokens}",
            lambda b=batch, t=tokens: flashinfer.decode_case(bench, b, t),  # type: ignore[misc]
        )  # fmt: skip
    report.run("flashinfer", "prefill 16384", lambda: flashinfer.prefill_case(bench, 16384))
