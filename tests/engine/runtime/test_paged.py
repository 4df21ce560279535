"""The engine on its paged path, as a GPU runs it: against the request-by-request path of the CPU, token for token.

Weights are fp32 and frames bf16, so that the two ways to add up differ by far less than two candidates for a token.
"""

from dataclasses import replace

import pytest
import torch

from pagefleet_engine.contract.precision import Precision
from pagefleet_engine.request import Request, SamplingParams
from pagefleet_engine.runtime.backend import CPU, Attention, Backend
from pagefleet_engine.runtime.graphs import RunAgain
from pagefleet_engine.testing import TINY, tiny_core, tiny_decoder

PAGED = Backend(is_paged=True)
TRITON = Backend(attention=Attention.TRITON, is_paged=True)
DECODER = tiny_decoder(seed=5)
SMALL = tiny_decoder(replace(TINY, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16), seed=4)
PRECISIONS = tuple(Precision)


class Recording:
    """`Capture` that runs again, and counts."""

    def __init__(self):
        self.captured = self.replayed = 0

    def __call__(self, run, /):
        self.captured += 1
        replay = RunAgain()(run)

        def counted():
            self.replayed += 1
            return replay()

        return counted


def core_of(backend, decoder=DECODER, **kwargs):
    settings = {"max_num_batched_tokens": 24, "num_frames": 60, **kwargs}
    return tiny_core(
        decoder=decoder, dtype=torch.float32, raw_dtype=torch.bfloat16, block_size=8, backend=backend, **settings
    )


def add(core, name, length, max_tokens, precision):
    prompt = [(int(name) * 97 + 7 * i * i + 3 * i) % 256 for i in range(length)]
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, logprobs=0)
    core.add(Request(request_id=name, prompt_token_ids=prompt, sampling=sampling, precision=precision))


def drive(core, changes=()):
    """Answers as (token, log probability) by request; `changes` are (request, tokens so far, new precision)."""
    answers = {}
    while core.has_work:
        for name, output in core.step():
            answers.setdefault(name, []).extend((entry.token_id, entry.logprob) for entry in output.logprobs)
            for changed, after, precision in changes:
                if name == changed and len(answers[name]) == after and output.finish_reason is None:
                    core.scheduler.set_precision(name, precision)
        core.scheduler.check_invariants()
    return answers


def five_requests(core):
    for index, precision in enumerate(PRECISIONS):
        add(core, str(index), 11 + 9 * index, 40, precision)
    return drive(core, changes=[("1", 12, Precision.INT4), ("3", 7, Precision.BF16)])


def assert_same(got, want, tolerance):
    """The same tokens, and log probabilities that differ by less."""
    assert {name: [token for token, _ in answer] for name, answer in got.items()} == {
        name: [token for token, _ in answer] for name, answer in want.items()
    }
    worst = max(abs(a - b) for name in want for (_, a), (_, b) in zip(got[name], want[name], strict=True))
    assert worst < tolerance


SETTINGS = {
    "chunks mixed with decodes": {},
    "chunks that begin and end inside groups": {"max_num_batched_tokens": 9},
    "swaps": {"num_frames": 22, "num_host_frames": 12},
    "a pool that forces recomputes": {"num_frames": 22},
    "prefix hits": {"enable_prefix_caching": True},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_all_precisions_side_by_side_give_the_tokens_of_the_other_path(settings):
    want = core_of(CPU, **settings)
    got = core_of(PAGED, **settings)
    assert_same(five_requests(got), five_requests(want), 1e-4)
    counters = got.scheduler.stats().counters
    assert (counters.swaps > 0) == ("num_host_frames" in settings)
    assert (counters.recomputes > 0) == (settings == {"num_frames": 22})


def test_replayed_steps_give_the_same_bits_as_steps_that_are_not_padded():
    capture = Recording()
    assert five_requests(core_of(PAGED, capture=capture)) == five_requests(core_of(PAGED))
    assert capture.captured >= 2
    assert capture.replayed >= 20


def test_batch_invariant_bits_depend_neither_on_chunks_nor_on_swaps():
    calm = five_requests(core_of(PAGED, batch_invariant=True))
    pressed = core_of(PAGED, batch_invariant=True, max_num_batched_tokens=9, num_frames=22, num_host_frames=12)
    assert five_requests(pressed) == calm
    assert pressed.scheduler.stats().counters.swaps > 0


def test_the_triton_kernels_give_the_tokens_of_the_reference():
    """Chunks, decodes, sealing in both, two precisions and a swap, in the interpreter; queries are rounded to bf16."""
    answers = []
    for backend in (TRITON, CPU):
        core = core_of(backend, SMALL, num_frames=5, num_host_frames=4, max_num_batched_tokens=13)
        add(core, "1", 18, 8, Precision.FP8_E4M3)
        add(core, "2", 14, 9, Precision.BF16)
        answers.append(drive(core))
        assert core.scheduler.stats().counters.swaps > 0
    assert_same(*answers, 0.1)
