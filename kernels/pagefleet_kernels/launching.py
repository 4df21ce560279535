"""The one place where a kernel that touches the pool is started; launchers take it as an argument, so that a test sees
what they would start."""

from __future__ import annotations

from typing import Any, Final, Protocol

from pagefleet_kernels.copy_frames.kernel import copy_frames_kernel
from pagefleet_kernels.paged_decode.kernel import combine_kernel, decode_kernel
from pagefleet_kernels.paged_prefill.kernel import prefill_kernel
from pagefleet_kernels.seal_frames.kernel import seal_kernel
from pagefleet_kernels.variants import KernelName, Variant
from pagefleet_kernels.write_open.kernel import write_open_kernel

KERNELS: Final[dict[KernelName, Any]] = {
    KernelName.DECODE: decode_kernel,
    KernelName.PREFILL: prefill_kernel,
    KernelName.COMBINE: combine_kernel,
    KernelName.SEAL: seal_kernel,
    KernelName.WRITE_OPEN: write_open_kernel,
    KernelName.COPY: copy_frames_kernel,
}


class Start(Protocol):
    """Starts a kernel on a grid. `native` is off in Triton's interpreter."""

    def __call__(self, variant: Variant, grid: tuple[int, ...], /, *arguments: Any, native: bool) -> None: ...


def start(variant: Variant, grid: tuple[int, ...], /, *arguments: Any, native: bool) -> None:
    """Compiles the variant first where this process has not met it."""
    kernel = KERNELS[variant.kernel]
    kernel[grid](*arguments, **variant.options(native=native))
