"""The paged path against a loop that recomputes everything: hand-made steps on a tiny random model in fp32."""

import pytest
import torch

from pagefleet_engine.runtime.batch import build_batch
from pagefleet_engine.runtime.kv_cache import KvCache, frame_layout
from pagefleet_engine.runtime.runner import ModelRunner
from pagefleet_engine.runtime.sampler import Sampler
from pagefleet_engine.scheduling.output import CopyFrame, SwapIn, SwapOut
from pagefleet_engine.testing import TINY, naive_greedy, naive_logits, raw_chunk, step_of, tiny_decoder

BLOCK = 16
DECODER = tiny_decoder()
PROMPT = [(7 * i * i + 3 * i + 5) % 256 for i in range(50)]
OTHER = [(11 * i * i + i + 1) % 256 for i in range(37)]


def make_runner(num_frames=24, num_host_frames=4):
    layout = frame_layout(TINY, block_size=BLOCK, raw_dtype=torch.float32)
    cache = KvCache(layout, num_frames=num_frames, num_host_frames=num_host_frames, raw_dtype=torch.float32)
    cache.pool.fill_(0xFF)  # every value that is read before it was written is NaN
    return ModelRunner(DECODER, cache, Sampler(seed=0, eos_token_ids=()))


def tokens_of(results):
    return [result.token_id for result in results]


@pytest.mark.parametrize(
    "cuts",
    [(50,), (16, 50), (1, 2, 3, 50), (15, 16, 17, 31, 33, 50), (49, 50)],
    ids=["one chunk", "cut at a frame", "single tokens first", "cuts around frame borders", "last token alone"],
)
def test_the_next_token_does_not_depend_on_how_the_prompt_was_cut(cuts):
    runner = make_runner()
    start = 0
    for end in cuts:
        results = runner.execute(step_of(raw_chunk("a", PROMPT, start=start, end=end, frames=[9, 3, 17, 4])))
        start = end
    assert tokens_of(results) == naive_greedy(DECODER, PROMPT, 1)


def test_prompt_chunks_and_decodes_of_several_requests_share_a_step():
    runner = make_runner()
    long, short = list(PROMPT), list(OTHER)
    frames = {"long": [1, 5, 2, 8, 20], "short": [7, 0, 6, 3, 11]}
    runner.execute(step_of(raw_chunk("short", short, start=0, end=37, frames=frames["short"])))
    want_short = naive_greedy(DECODER, OTHER, 3)
    short += want_short[:1]
    for start, end in ((0, 20), (20, 50)):
        results = runner.execute(
            step_of(
                raw_chunk("short", short, start=len(short) - 1, end=len(short), frames=frames["short"]),
                raw_chunk("long", long, start=start, end=end, frames=frames["long"]),
            )
        )
        short.append(results[0].token_id)
    assert short[37:] == want_short
    assert results[1].token_id == naive_greedy(DECODER, PROMPT, 1)[0]


def test_logits_equal_the_recomputed_ones():
    runner = make_runner()
    want = naive_logits(DECODER, PROMPT)
    for end in range(1, 51):
        step = step_of(raw_chunk("a", PROMPT, start=end - 1, end=end, frames=[9, 3, 17, 4]))
        with torch.inference_mode():
            got = DECODER.logits(runner.hidden(build_batch(step, BLOCK)))
        torch.testing.assert_close(got[0], want[end - 1], rtol=1e-5, atol=1e-5)


def test_a_request_goes_on_after_its_frames_went_to_host_memory_and_back():
    runner = make_runner()
    runner.execute(step_of(raw_chunk("a", PROMPT, start=0, end=40, frames=[9, 3, 17])))
    runner.execute(step_of(swap_out=(SwapOut(9, 2), SwapOut(3, 0), SwapOut(17, 3))))
    runner.cache.pool.fill_(0xFF)
    back = (SwapIn(2, 1), SwapIn(0, 12), SwapIn(3, 5))
    results = runner.execute(step_of(raw_chunk("a", PROMPT, start=40, end=50, frames=[1, 12, 5, 6]), swap_in=back))
    assert tokens_of(results) == naive_greedy(DECODER, PROMPT, 1)


def test_a_fork_writes_into_its_copy_of_the_open_frame():
    runner = make_runner()
    runner.execute(step_of(raw_chunk("a", PROMPT, start=0, end=40, frames=[9, 3, 17])))
    other = [*PROMPT[:40], 9, 8, 7]
    results = runner.execute(
        step_of(
            raw_chunk("a", PROMPT, start=40, end=48, frames=[9, 3, 17]),
            raw_chunk("b", other, start=40, end=43, frames=[9, 3, 20]),
            copy=(CopyFrame(17, 20),),
        )
    )
    assert tokens_of(results) == naive_greedy(DECODER, PROMPT[:48], 1) + naive_greedy(DECODER, other, 1)
