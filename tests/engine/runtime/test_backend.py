"""Which backend an engine gets, and what it is told when it cannot have one."""

from dataclasses import replace

import pytest
import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.errors import StartupError
from pagefleet_engine.runtime.backend import BACKEND_VARIABLE, CPU, Attention, Backend, Machine, choose_backend

H200 = "NVIDIA H200"
ONE_GPU = Machine(gpus=(H200,))
NO_GPU = Machine()
INTERPRETER = Machine(interprets=True)
ON_GPU = Backend(attention=Attention.TRITON, device_type="cuda", device_name=H200, is_paged=True)
INTERPRETED = Backend(attention=Attention.TRITON, is_paged=True)
INVARIANT = Backend(attention=Attention.REFERENCE, device_type="cuda", device_name=H200, is_paged=True)
ON_A100 = replace(ON_GPU, device_name="A100", without=frozenset({Precision.FP8_E4M3}))

CHOSEN = {
    "Triton where a GPU is": (None, ONE_GPU, {}, ON_GPU),
    "the CPU where none is": (None, NO_GPU, {}, CPU),
    "the CPU when it is asked for": ("reference", ONE_GPU, {}, CPU),
    "an empty variable is no wish": ("", NO_GPU, {}, CPU),
    "the references on the GPU for bits that no batch changes": (None, ONE_GPU, {"batch_invariant": True}, INVARIANT),
    "the interpreter when tests ask for it": ("triton", INTERPRETER, {}, INTERPRETED),
    "no GPU is used beside the interpreter": (None, Machine(gpus=(H200,), interprets=True), {}, CPU),
    "no fp8_e4m3 on a GPU that cannot convert it": (None, Machine(gpus=("A100",), capability=(8, 0)), {}, ON_A100),
    "fp32 on a CPU": (None, NO_GPU, {"dtype": torch.float32}, CPU),
    "as many ranks as GPUs": (None, Machine(gpus=(H200, H200)), {"num_ranks": 2}, ON_GPU),
    "any number of ranks on a CPU": (None, NO_GPU, {"num_ranks": 4}, CPU),
}


@pytest.mark.parametrize(("wanted", "machine", "options", "expected"), CHOSEN.values(), ids=CHOSEN.keys())
def test_choice(wanted, machine, options, expected):
    environ = {} if wanted is None else {BACKEND_VARIABLE: wanted}
    assert choose_backend(environ, machine, **options) == expected


LEAVE = "set PAGEFLEET_ATTENTION_BACKEND=reference to run on the CPU"
REFUSED = {
    "an unknown name": (
        "cutlass", NO_GPU, {}, "PAGEFLEET_ATTENTION_BACKEND=cutlass: use triton or reference, or leave it unset",
    ),
    "Triton without GPU or interpreter": (
        "triton", NO_GPU, {}, "PAGEFLEET_ATTENTION_BACKEND=triton: this machine has no NVIDIA GPU; leave it unset",
    ),
    "a GPU without Triton": (
        None, Machine(gpus=(H200,), has_triton=False), {},
        f"the triton package is missing: install pagefleet[kernels], or {LEAVE}",
    ),
    "fp32 on a GPU": (
        None, ONE_GPU, {"dtype": torch.float32},
        f"--dtype float32: the GPU kernels read bf16 K and V; leave it out, or {LEAVE}",
    ),
    "more ranks than GPUs": (
        None, ONE_GPU, {"num_ranks": 2},
        f"--tensor-parallel-size 2: GPUs on this machine: 1; use at most that, or {LEAVE}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wanted", "machine", "options", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refusal(wanted, machine, options, message):
    environ = {} if wanted is None else {BACKEND_VARIABLE: wanted}
    with pytest.raises(StartupError) as error:
        choose_backend(environ, machine, **options)
    assert str(error.value) == message


def test_each_rank_has_a_gpu_of_its_own():
    assert [ON_GPU.device(rank) for rank in range(2)] == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert CPU.device(1) == torch.device("cpu")
