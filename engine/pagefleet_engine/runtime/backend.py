"""Which implementation runs a model's paged operations, and on what: chosen once, at start, from what the machine has.

    a GPU              Triton kernels on it, or their references on it under `--batch-invariant`
    no GPU             the references on the CPU
    forced to triton   Triton's interpreter on the CPU, for tests; much too slow to serve

Pure: what the machine has and its environment are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError

BACKEND_VARIABLE = "PAGEFLEET_ATTENTION_BACKEND"
"""`triton` or `reference`; `reference` also keeps the engine on the CPU. Unset, the machine decides."""


_CONVERTS_E4M3 = (8, 9)
"""Older GPUs, as the A100, have no instruction for it, and Triton refuses the type."""


class Attention(StrEnum):
    """What computes attention, seals and writes frames."""

    TRITON = "triton"
    REFERENCE = "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What an engine may find."""

    gpus: tuple[str, ...] = ()
    """Their names."""
    capability: tuple[int, int] = (9, 0)
    """Compute capability of the oldest of them."""
    has_triton: bool = True
    interprets: bool = False
    """Triton runs in its interpreter (`TRITON_INTERPRET=1`), which works on the CPU only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """The choice; the same on every rank. Its device differs from rank to rank."""

    attention: Attention = Attention.REFERENCE
    device_type: str = "cpu"
    device_name: str = "cpu"
    is_paged: bool = False
    """One call per op for all requests of a step, over frame tables. The CPU's own path attends request by request."""

    without: frozenset[Precision] = frozenset()
    """Precisions that the kernels cannot be compiled for on this device."""

    @property
    def is_gpu(self) -> bool:
        return self.device_type != "cpu"

    @property
    def impl(self) -> Literal["triton", "reference"]:
        """As the kernels' ops are told."""
        return "triton" if self.attention is Attention.TRITON else "reference"

    def device(self, rank: int = 0) -> torch.device:
        """Each rank has a GPU of its own."""
        return torch.device(self.device_type, rank) if self.is_gpu else torch.device("cpu")


CPU = Backend()


def choose_backend(
    environ: Mapping[str, str],
    machine: Machine,
    *,
    num_ranks: int = 1,
    batch_invariant: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> Backend:
    """The backend of this engine. Raises `StartupError` for one that cannot be had."""
    wanted = environ.get(BACKEND_VARIABLE) or None
    if wanted is not None and wanted not in list(Attention):
        raise StartupError(f"{BACKEND_VARIABLE}={wanted}: use {' or '.join(Attention)}, or leave it unset")
    gpus = () if machine.interprets else machine.gpus
    if wanted == Attention.REFERENCE or (wanted is None and not gpus):
        return CPU
    _check(wanted, gpus, machine, num_ranks, dtype)
    attention = Attention.REFERENCE if batch_invariant else Attention.TRITON
    if not gpus:
        return Backend(attention=attention, is_paged=True)
    without = frozenset[Precision]()
    if attention is Attention.TRITON and machine.capability < _CONVERTS_E4M3:
        without = frozenset({Precision.FP8_E4M3})
    return Backend(attention=attention, device_type="cuda", device_name=gpus[0], is_paged=True, without=without)


def _check(wanted: str | None, gpus: tuple[str, ...], machine: Machine, num_ranks: int, dtype: torch.dtype) -> None:
    leave = f"set {BACKEND_VARIABLE}={Attention.REFERENCE} to run on the CPU"
    if not machine.has_triton:
        raise StartupError(f"the triton package is missing: install pagefleet[kernels], or {leave}")
    if dtype is torch.float32:
        raise StartupError(f"--dtype float32: the GPU kernels read bf16 K and V; leave it out, or {leave}")
    if not gpus and not machine.interprets:
        raise StartupError(f"{BACKEND_VARIABLE}={wanted}: this machine has no NVIDIA GPU; leave it unset")
    if gpus and num_ranks > len(gpus):
        raise StartupError(
            f"--tensor-parallel-size {num_ranks}: GPUs on this machine: {len(gpus)}; use at most that, or {leave}"
        )
